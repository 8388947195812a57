"""Compiles the programs for CPU, GPU and TPU with the JAX that is installed, and keeps what the compilers say.

Run it once for each JAX version, with the extras `gpu-plan` and `tpu-plan` installed (minutes):

    python tests/golden/hlo/make.py [cpu gpu tpu]
"""

import gzip
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
TARGETS = {"cpu": "cpu:8", "gpu": "h100:1x8", "tpu": "tpu-v5e:2x4"}


def load_programs():
    """The programs, as if they came from a file in nobody's folder: the text names the files it was compiled from."""
    space: dict = {"__name__": "programs"}
    exec(compile((FOLDER / "programs.py").read_text(), "programs.py", "exec"), space)
    return space["PROGRAMS"]


def main() -> None:
    """Writes `<kind>-<JAX version>-<program>.hlo.gz` beside this file."""
    import jax

    import outlay

    for kind in sys.argv[1:] or TARGETS:
        mesh = outlay.mesh("data=4,model=2", target=TARGETS[kind])
        for program in load_programs():
            function, args = program(mesh)
            text = function.lower(*args).compile().as_text()
            text = text.replace(str(FOLDER) + "/", "")
            path = FOLDER / f"{kind}-{jax.__version__}-{program.__name__}.hlo.gz"
            path.write_bytes(gzip.compress(text.encode(), mtime=0))
            print(path.name, len(text), path.stat().st_size, flush=True)


if __name__ == "__main__":
    main()
