"""What the compilers said of the programs in tests/golden/hlo."""

import gzip
from pathlib import Path

FOLDER = Path(__file__).parents[3] / "golden/hlo"
MESH = (("data", 4), ("model", 2))
FILES = sorted(path.name.removesuffix(".hlo.gz") for path in FOLDER.glob("*.hlo.gz"))


def golden_text(name: str) -> str:
    return gzip.decompress((FOLDER / f"{name}.hlo.gz").read_bytes()).decode()
