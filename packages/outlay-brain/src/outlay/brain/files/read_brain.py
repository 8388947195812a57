"""Read a Brain from a file, whatever its format."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from outlay.brain.brain import Brain
from outlay.brain.files.scfg.plain import LARGEST, is_scfg
from outlay.brain.files.scfg.read_scfg import read_scfg, read_scfg_neuron
from outlay.brain.files.toml_read import read_toml
from outlay.brain.module import BrainError, Shape
from outlay.brain.neuron import Neuron
from outlay.errors import Problem
from outlay.kit import open_input


def read_brain(path: str | os.PathLike, *, inputs: Mapping[str, Shape] | None = None, trust: bool = False) -> Brain:
    """Read a Brain from its file: Outlay's TOML or a `.scfg` of Spark, recognized by its content.

    Args:
        path: the file.
        inputs: shapes of inputs by name, for a `.scfg` that does not say them (the newest do not).
        trust: run the Python files that a TOML names under `imports`, with all that you may do. They must lie in its
            folder, or below. Without, a file that names some is refused.

    Raises:
        BrainError: the file cannot be read, or describes no Brain that can be built; every offender is listed.

    Example:
        >>> from importlib.resources import files
        >>> from outlay.brain import read_brain
        >>> brain = read_brain(files("outlay.brain.run") / "ab_brain.toml")
        >>> list(brain.modules)
        ['spiker', 'integrator', 'A_ex', 'A_in', 'B_ex', 'B_in']
    """
    file, name = Path(path), os.fspath(path)
    content = _content(file)
    if is_scfg(content):
        return read_scfg(content, name=name, inputs=inputs or {})
    if inputs:
        what = f"{name} is TOML, which says the shapes of its inputs itself: {', '.join(inputs)}"
        raise BrainError(f"{what}\n  fix: shape = [...] under [inputs.NAME] in the file")
    return read_toml(_decoded(content, name), name=name, folder=file.parent, trust=trust)


def read_neuron(path: str | os.PathLike, *, units: int | None = None) -> Neuron:
    """Read a neuron from a `.scfg` of Spark that holds one, to put among the modules of a Brain.

    Args:
        path: the file.
        units: how many neurons; as many as the file says if None.

    Raises:
        BrainError: the file cannot be read, holds no neuron, or something that is not understood; all of it is named.

    Example:
        >>> file = "packages/outlay-brain/brain_tests/data/alif_mod_neuron.scfg"
        >>> outlay.brain.read_neuron(file, units=12).soma.threshold_delta
        100.0
    """
    content, name = _content(Path(path)), os.fspath(path)
    if not is_scfg(content):
        raise _unreadable(name, "not a neuron", "it is no .scfg of Spark", "a file that Spark wrote")
    return read_scfg_neuron(content, name=name, units=units)


def parse_shapes(texts: Iterable[str]) -> dict[str, Shape]:
    """Return shapes of inputs by name from the form in which people write them on a command line.

    Args:
        texts: such as `drive=4` and `image=28x28`.

    Raises:
        BrainError: a text is not a shape; all of them are listed.

    >>> parse_shapes(["drive=4", "image=28x28"])
    {'drive': (4,), 'image': (28, 28)}
    """
    shapes, problems = {}, []
    for text in texts:
        name, _, shape = text.partition("=")
        sizes = shape.split("x")
        if name and all(size.isdecimal() and int(size) for size in sizes):
            shapes[name] = tuple(int(size) for size in sizes)
        else:
            what = f"{text!r} is not a shape"
            problems.append(Problem("shape", text, what, "write drive=4 or image=28x28"))
    if problems:
        raise BrainError("shapes of inputs cannot be read:", problems)
    return shapes


def _content(file: Path) -> bytes:
    try:
        with open_input(file) as opened:
            # One byte more, to see whether there are more.
            content = opened.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise OSError(errno.EFBIG, f"it is larger than {LARGEST:,} bytes")
        return content
    except OSError as error:
        raise _unreadable(str(file), "no file", error.strerror or str(error), "a file that you can read") from error


def _decoded(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        what = "it is neither text nor a .scfg file"
        raise _unreadable(name, "not a Brain", what, "a Brain in TOML, or a whole .scfg of Spark") from error


def _unreadable(where: str, kind: str, what: str, fix: str) -> BrainError:
    return BrainError("the file of the Brain cannot be read:", [Problem(kind, where, what, fix)])
