"""What a reader, and a plain program, pay for a verb: the files that it enters, their lines, and the modules it loads.

Each verb runs in a process of its own under a profile hook, which counts what runs: a file is entered if one of its
functions is called. Imports are left out with all that they run, and so are bodies of classes. The ceilings stand in
`verb_ceilings.toml`, beside this file: they may fall freely, and rise only with a reason. `measure.py` prints all.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src" / "outlay"
CEILINGS = HERE / "verb_ceilings.toml"

PLAIN_STEP = """
import jax, jax.numpy as jnp, numpy as np
import outlay

outlay.simulate(8)

def init(key):
    return {"up": jax.random.normal(key, (64, 64)), "down": jax.random.normal(key, (64, 8))}

def loss(params, batch):
    return jnp.mean((jnp.tanh(batch["x"] @ params["up"]) @ params["down"] - batch["y"]) ** 2)

def step(params, batch):
    value, grads = jax.value_and_grad(loss)(params, batch)
    return jax.tree.map(lambda param, grad: param - 0.1 * grad, params, grads), {"loss": value}

batch = {"x": np.ones((16, 64), np.float32), "y": np.ones((16, 8), np.float32)}

def make():
    return outlay.program(step, init, batch, layout=outlay.fsdp(min_size=8) + outlay.data_parallel(), mesh="data=8")
"""
"""A step of two products without a wish of any kind."""

PROGRAM = f"""{PLAIN_STEP}
with walked():
    program = make()
    state = program.init(jax.random.key(0))
    state, _ = program(state, batch)
"""
SECOND_CALL = f"""{PLAIN_STEP}
program = make()
batch = jax.device_put(batch, jax.NamedSharding(program.mesh, jax.P("data")))
state, _ = program(program.init(jax.random.key(0)), batch)
with walked():
    program(state, batch)
"""
VERIFY = f"""{PLAIN_STEP}
program = make()
with walked():
    outlay.verify(program)
"""


def command(*arguments: str) -> str:
    """Return the program that runs a command."""
    return f"""
import contextlib, io, sys
sys.argv = ["outlay", *{arguments!r}]
with walked(), contextlib.redirect_stdout(io.StringIO()):
    from outlay.cli.main import main
    try:
        main()
    except SystemExit as ended:
        if ended.code:  # a command that fails enters less
            raise
"""


VERBS = {
    "program": PROGRAM,
    "second call": SECOND_CALL,
    "verify": VERIFY,
    "show digits": command("show", "digits", "--devices", "8", "--layout", "fsdp"),
    "run digits": command("run", "digits", "--devices", "8", "--layout", "fsdp", "--steps", "2", "--force"),
    "explain lm": command("explain", "lm", "--target", "cpu:8", "--layout", "fsdp"),
    "run ab_brain": command("run", "ab_brain", "--devices", "6", "--mode", "placed", "--steps", "4", "--force"),
}
"""The program of each verb; what it does inside `walked()` counts."""

OPTIONAL = {
    "rules by source line": "program/by_source.py",
    "rows of parts": "program/by_rows.py",
    "explicit axes": "program/explicit.py",
    "meshes of the step's own": "program/own_meshes.py",
    "layouts from annotations": "layout/from_annotations.py",
    "boxes of other libraries": "core/annotated_boxes.py",
    "keep, offload and recompute": "program/rematerialization.py",
    "gather at use": "program/gather_at_use.py",
    "state gathered by a step": "program/gather_state.py",
    "several steps a call": "program/multi_step.py",
    "mode manual": "program/manual_step.py",
    "gradients by hand": "program/manual_gradients.py",
    "operations per shard": "program/per_shard_operations.py",
    "stacked layers": "layout/check_stacks.py",
    "attention kernels": "core/jax_kernels.py",
    "names of devices in texts": "devices/device_names.py",
    "jobs of several processes": "jobs/current_job.py",
    "agreement of processes": "program/consistency.py",
    "flags of XLA": "core/flag_check.py",
    "NNX objects": "program/functional_step.py",
    "objects that are shared": "core/shared_objects.py",
    "diagnosis of a call that failed": "program/diagnose.py",
    "faults of compilers": "program/compiler_faults.py",
    "values that leaked": "program/leaked_values.py",
}
"""Features that a plain program does not use, and the file that it then has no reason to enter."""


@dataclass(frozen=True)
class VerbPath:
    """What a verb enters and loads.

    Attributes:
        files: the files of Outlay that it enters.
        modules: how many modules of Outlay are loaded when it has ended.
    """

    files: frozenset[str]
    modules: int

    @property
    def num_lines(self) -> int:
        """The lines of its files."""
        return sum(len((SOURCE / file).read_text().splitlines()) for file in self.files)

    @property
    def in_vain(self) -> list[str]:
        """The features of `OPTIONAL` whose files it enters."""
        return [feature for feature, file in OPTIONAL.items() if file in self.files]


def ceilings() -> dict[str, dict[str, Any]]:
    """Return the ceilings of each verb."""
    return tomllib.loads(CEILINGS.read_text())


def path_of(verb: str) -> VerbPath:
    """Run a verb in a process of its own, in an empty folder, and return what it entered."""
    return path_of_program(VERBS[verb])


def path_of_program(text: str) -> VerbPath:
    """Return what a program enters inside `walked()`."""
    program = f"import sys; sys.path.insert(0, {str(HERE)!r})\nfrom verb_paths import walked, report\n{text}"
    with tempfile.TemporaryDirectory() as folder:
        ended = subprocess.run(
            [sys.executable, "-c", f"{program}\nreport({folder!r})"],
            cwd=folder,
            env=_as_users_have_it() | {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": folder},
            capture_output=True,
            text=True,
            check=False,
        )
        report_file = Path(folder, REPORT)
        if not report_file.exists():
            raise RuntimeError(f"the program of a verb failed:\n{ended.stderr}")
        facts = json.loads(report_file.read_text())
    return VerbPath(frozenset(facts["files"]), facts["modules"])


def _as_users_have_it() -> dict[str, str]:
    """The environment without what the tests set: flags of XLA and options of JAX have ways of their own."""
    return {name: value for name, value in os.environ.items() if name != "XLA_FLAGS" and not name.startswith("JAX_")}


REPORT = "path.json"
_ENTERED: set[str] = set()


def report(folder: str) -> None:
    """In the process of a verb: write what it entered."""
    files = [str(Path(file).relative_to(SOURCE)) for file in _ENTERED]
    modules = sum(name.partition(".")[0] == "outlay" for name in sys.modules)
    Path(folder, REPORT).write_text(json.dumps({"files": sorted(files), "modules": modules}))


@contextmanager
def walked() -> Iterator[None]:
    """Note the files of Outlay whose functions are called in this block, by any thread that it starts, too."""
    threading.setprofile(profile())
    sys.setprofile(profile())
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def profile() -> Callable[[FrameType, str, Any], None]:
    """Return a hook for one thread."""
    importing = 0  # how many bodies of modules and classes are running

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal importing
        if event not in ("call", "return"):
            return
        code = frame.f_code
        if not code.co_flags & inspect.CO_OPTIMIZED:
            importing += 1 if event == "call" else -1
        elif event == "call" and not importing and code.co_filename.startswith(_SOURCE_TEXT):
            _ENTERED.add(code.co_filename)

    return note


_SOURCE_TEXT = str(SOURCE) + os.sep
