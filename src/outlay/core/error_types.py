"""The errors that Outlay raises: each says where, how much and what to change, and lists all offenders at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outlay.core.terminal_text import visible


class OutlayError(Exception):
    """Base class of every error that Outlay raises on purpose.

    Its message has at most 2 KB: how much is wrong, and the first of it.

    Attributes:
        problems: one `Problem` per offender, in the order of the tree, of the rules or of the processes; empty where
            the headline says everything.
        details: the message with every offender, however long.

    Example:
        >>> layout = outlay.Layout([("params.w*", P("data"))])
        >>> tree = {"params": {f"w{a}{b}": np.ones(7, np.float32) for a in "abcdefgh" for b in "abcdefgh"}}
        >>> try:
        ...     layout.plan(tree, outlay.mesh(data=8))
        ... except outlay.errors.LayoutError as error:
        ...     len(error.problems), len(str(error)) < 2000, error.details.count("indivisible dim")
        (64, True, 64)
    """

    def __init__(self, headline: str = "", problems: Sequence[Problem] = ()) -> None:
        self.problems, self._headline = tuple(problems), headline
        super().__init__(message(visible(headline), self.problems))

    def __str__(self) -> str:
        return visible(super().__str__())  # it may quote a name, a file or another machine

    @property
    def details(self) -> str:
        """The message with every offender."""
        texts = [text for _, text, _ in _texts(self.problems)]
        return visible("\n".join([self._headline, *texts]))


class MeshError(OutlayError, ValueError):
    """A mesh cannot be built: sizes, names or devices do not fit."""


class BackendStartedError(OutlayError, RuntimeError):
    """A setting came after JAX had started its backend, when it can no longer take effect."""


class BackendError(OutlayError, RuntimeError):
    """JAX cannot start on this machine with the settings of this process, such as `JAX_PLATFORMS`."""


class ArgumentError(OutlayError, TypeError):
    """A function was called with arguments that it does not take, or without some that it needs."""


class LayoutError(OutlayError, ValueError):
    """A layout does not fit this tree on this mesh."""


class PlaceError(OutlayError, ValueError):
    """Pieces, files, indices or processes do not fit the array that was asked for."""


class ProgramError(OutlayError, RuntimeError):
    """A program cannot be built or run as asked."""


class CompilerAbortError(ProgramError):
    """A compiler gave no answer: it met a fault of its own, or something outside ended the process that it ran in.

    Attributes:
        is_from_outside: whether something outside did, such as a machine without memory; another time it may answer.
    """

    is_from_outside = False


class VerifyError(OutlayError, AssertionError):
    """A program does not compute what its reference computes."""


class DataError(OutlayError, ValueError):
    """Files of examples are missing, cannot be read, or hold something other than was asked for."""


class RecipeError(OutlayError, ValueError):
    """A recipe cannot be found, imported or used."""


class ShowError(OutlayError, TypeError):
    """The argument of `outlay.show` holds no array, or there is no such report for it."""


class TargetError(OutlayError, ValueError):
    """A target is unknown or malformed, or this machine cannot compile for it."""


class ExplainError(OutlayError, ValueError):
    """The argument of `outlay.explain` or `outlay.estimate` is not a program that can be compiled or read."""


class ProfileError(OutlayError, ValueError):
    """A trace cannot be read or belongs to another program, or the program cannot run here."""


class ChooseError(OutlayError, ValueError):
    """There is no layout to choose: nothing to try, or nothing that was tried can run on the target."""


class RunFolderError(OutlayError, FileExistsError):
    """A run folder cannot be used or written to, or its content would be overwritten."""


class OutputError(OutlayError, FileExistsError):
    """A file cannot be written, or would replace one that Outlay did not make."""


class LaunchError(OutlayError, ValueError):
    """Processes cannot be started as asked."""


class JoinError(OutlayError, RuntimeError):
    """A process cannot join its job: its number or address is not clear, or other processes did not come."""


class CheckpointError(OutlayError, ValueError):
    """A checkpoint cannot be saved or restored: it is absent, damaged, or of another state."""


class CheckpointWarning(UserWarning):
    """An older checkpoint than the newest was restored, an old one cannot be removed, or a folder cannot be locked."""


for _kind in [*vars().values()]:
    if isinstance(_kind, type) and issubclass(_kind, OutlayError | UserWarning):
        # Where users catch them: what a traceback names is what they can write.
        _kind.__module__ = "outlay.errors"


@dataclass(frozen=True)
class Problem:
    """One offender: where it is, what is wrong with it, and the edit that fixes it.

    Attributes:
        kind: the class of problem in a word or two, such as "unused rule"; used to group and to test.
        where: the leaf's path, empty for a tree that is one bare array, or the rule that offends.
        what: what is wrong, with the numbers.
        fix: the edit to make.
    """

    kind: str
    where: str
    what: str
    fix: str

    def text(self) -> str:
        """Return the problem as an indented paragraph, for a message."""
        fix = self.fix.replace("\n", "\n           ")
        return f"  {self.kind}: {self.where or 'the bare array'}\n    {self.what}\n    fix: {fix}"


_FEW = 3
"""Problems of equal layers that are told one by one."""


def message(headline: str, problems: Sequence[Problem]) -> str:
    """Join a headline and its problems; merge those of equal layers, and of too many show some of each kind.

    >>> many = [Problem("typo", f"w{i}", f"it is wrong {chr(97 + i % 26)}", "correct it") for i in range(100)]
    >>> message("wrong:", many).splitlines()[-2:]
    ['  ... and 64 more of typo', '  all of it: error.details in Python, or outlay --traceback COMMAND']
    >>> of_layers = [Problem("typo", f"layers.{i}.w", "it is wrong", f"correct layers.{i}.w") for i in range(80)]
    >>> print(message("wrong:", of_layers))
    wrong:
      typo: layers.{0..79}.w, 80 alike
        it is wrong
        fix: correct layers.*.w
    """
    from outlay.core.brief_message import brief_listing

    return brief_listing(headline, _texts(problems))


def _texts(problems: Sequence[Problem]) -> list[tuple[str, str, int]]:
    """Return kind, text and count of each problem, merged for equal layers."""
    groups = _by_layer(problems)
    return [
        (problems[group[0]].kind, visible(_as_one([problems[i] for i in group]).text()), len(group)) for group in groups
    ]


def _by_layer(problems: Sequence[Problem]) -> list[list[int]]:
    """Group problems that say the same about equal layers, by number; a few problems stay single."""
    if len(problems) <= _FEW:
        return [[number] for number in range(len(problems))]
    from outlay.core.equal_layers import without_layers

    alike: dict[tuple[str, ...], list[int]] = {}
    for number, problem in enumerate(problems):
        words = (problem.kind, *map(without_layers, (problem.where, problem.what, problem.fix)))
        alike.setdefault(words, []).append(number)
    groups = [[group] if len(group) > _FEW else [[number] for number in group] for group in alike.values()]
    return sorted(one for group in groups for one in group)


def _as_one(problems: Sequence[Problem]) -> Problem:
    if len(problems) == 1:
        return problems[0]
    from outlay.core.equal_layers import as_pattern, fold_numbers

    first = problems[0]
    where = f"{fold_numbers([problem.where for problem in problems])}, {len(problems)} alike"
    what = fold_numbers([problem.what for problem in problems])
    return Problem(first.kind, where, what, as_pattern([problem.fix for problem in problems]))
