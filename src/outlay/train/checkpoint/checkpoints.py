"""Checkpoints of a run: saved beside the training, restored onto any arrangement of devices."""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax.core import Tracer

from outlay.core.array_leaves import non_arrays
from outlay.core.error_types import CheckpointError, CheckpointWarning, Problem
from outlay.core.paths import flatten_paths
from outlay.core.quantities import counted
from outlay.devices.mesh_info import check_runnable
from outlay.program.program import Program
from outlay.train.checkpoint.array_files import (
    ArrayFiles,
    InBackground,
    in_short,
    padded_state,
    saved_leaves,
    unpadded_state,
    written_by,
)
from outlay.train.checkpoint.folder import CheckpointFolder
from outlay.train.checkpoint.integrity import ARRAYS, Manifest, read_manifest, saved_files
from outlay.train.checkpoint.select_leaves import NameRules, check_same_state, free, leaves_of, name_rules, part_of
from outlay.train.multihost import as_first_finds, is_first, wait_for_all


class Checkpoints:
    """The last few checkpoints of a run, in a folder that all its processes see.

    A checkpoint holds global arrays by their dotted paths and knows nothing of meshes: it is restored onto any mesh,
    layout, number of devices or processes. It is there when it is whole, and not before: a run that is killed at any
    moment leaves the checkpoints that it had.

    In a job of several processes, every process makes the same calls in the same order.

    Args:
        folder: where they are; made when the first is saved.
        keep: how many of the last ones stay.

    Raises:
        CheckpointError: fewer than 1 would stay.

    Example:
        >>> import tempfile
        >>> step = lambda state, batch: ({"w": state["w"] + batch.mean()}, {})
        >>> init = lambda key: {"w": jax.random.normal(key, (16, 4))}
        >>> def arranged(layout, **axes):
        ...     return outlay.program(step, init, np.ones(8), layout=layout, mesh=outlay.mesh(**axes))
        >>> eight = arranged(outlay.fsdp(min_size=8) + outlay.data_parallel(), data=8)
        >>> checkpoints = outlay.Checkpoints(tempfile.mkdtemp(), keep=2)
        >>> checkpoints.save(100, eight.init(jax.random.key(0)))
        >>> other = arranged([("w", P("a", "b")), ("batch", P())], a=4, b=2)
        >>> step, state = checkpoints.restore(other)
        >>> step, state["w"].sharding.spec
        (100, P('a', 'b'))
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: int = 3) -> None:
        if not isinstance(keep, int) or keep < 1:
            raise CheckpointError(f"keep={keep!r}: 1 checkpoint or more must stay to restore from")
        if Path(folder) == Path() or not os.fspath(folder).strip():
            raise CheckpointError(
                f"Checkpoints({os.fspath(folder)!r}) is the current folder, or a variable that is empty"
                "\n  fix: name a folder that is for checkpoints alone"
            )
        self._folder = CheckpointFolder(Path(folder).absolute())
        self._keep = keep
        self._arrays: ArrayFiles | None = None
        self._saving: InBackground | None = None
        self._left: list[str] = []
        self._warned: set[str] = set()
        self._is_taken = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.wait()
        self.close()

    @property
    def path(self) -> Path:
        """The folder."""
        return self._folder.path

    def steps(self) -> list[int]:
        """The steps that can be restored, oldest first: those whose files are all there with their sizes."""
        return self._folder.whole()

    def last_saved(self) -> int | None:
        """The newest step that can be restored, for a run that is interrupted; what is being written is waited for."""
        if jax.process_count() == 1:  # several stop at different steps, and would wait for each other for ever
            self.wait()
        return max(self.steps(), default=None)

    def exist(self) -> bool:
        """Whether there is any checkpoint, be it damaged; the same answer in all processes."""
        return bool(as_first_finds(lambda: len(self._folder.present())))

    def save(self, step: int, state: Any) -> None:
        """Save a state. It returns when the arrays are copied; writing them goes on beside what comes next.

        What was saved before is waited for first, so that one checkpoint at a time is in the host's memory. With the
        first save the folder is taken: until `close`, or the end of the program, nobody else can save there.

        Args:
            step: the global step that the state is after.
            state: any tree of arrays; `program.crop(state)` where the program fills up rows that devices do not divide.

        Raises:
            CheckpointError: the state holds leaves that are no arrays or were used up, there is a checkpoint of this or
                a later step, the folder is not Outlay's, another program saves to it, it cannot be written, or the last
                save failed. All that was there is there, and the next save is as if this one had not been.
        """
        try:
            step = operator.index(step)
        except TypeError as error:
            raise CheckpointError(f"step {step!r:.40} cannot be saved: it is no whole number") from error
        if step < 0:
            raise CheckpointError(f"step {step} cannot be saved: steps are counted from 0")
        self.wait()
        arrays = _arrays(state)
        self._take()
        self._check_is_newest(step)
        failed = f"the checkpoint of step {step} could not be written to {self.path}"
        partial = self._folder.partial(step)
        try:
            leaves, writer = saved_leaves(arrays), written_by(arrays)
            if is_first():
                self._left += self._folder.begin(step)
            self._array_files().start_writing(partial / ARRAYS, arrays)
        except BaseException as error:
            self._give_up(partial)
            if not isinstance(error, Exception) or isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{failed}: {in_short(error)}") from error

        def complete() -> None:  # refers to no array: what was copied can be freed
            try:
                self._array_files().finish_writing()
                if is_first():
                    manifest = Manifest(step, leaves, saved_files(partial), writer)
                    self._left += self._folder.complete(partial, manifest)
                    self._left += self._folder.keep_last(self._keep)
            except BaseException:
                self._give_up(partial)
                raise

        self._saving = InBackground(complete, failed)

    def wait(self) -> None:
        """Wait until what was saved is on disk, in all processes. A program that saves waits before it ends.

        An old checkpoint that cannot be removed is a warning: the new one is there.

        Raises:
            CheckpointError: it could not be written; the checkpoints before it are as they were.
        """
        if self._saving is None:
            return
        saving, self._saving = self._saving, None
        saving.finish()
        self._warn_of_what_is_left()
        wait_for_all(f"outlay checkpoints in {self.path}")

    def raise_if_failed(self) -> None:
        """Raise at once where what is being saved has failed already; waits for nothing. For loops, after each step.

        Raises:
            CheckpointError: as `wait`.
        """
        if self._saving is not None and self._saving.has_failed:
            saving, self._saving = self._saving, None
            saving.finish()

    def close(self) -> None:
        """Let other programs save there. A later `save` takes the folder again.

        `wait` comes before it, as at the end of a `with`; after an exception what is being written is written, and its
        failure told by the next call.
        """
        if self._saving is not None:
            if jax.process_count() > 1:
                return  # others may have failed and never end the save; the lock goes with this process
            self._saving.join()
        self._folder.own.release()
        self._is_taken = False

    def restore(
        self,
        program: Program,
        step: int | None = None,
        *,
        into: Any = None,
        only: str | Sequence[str] = "**",
        names: NameRules = (),
    ) -> tuple[int, Any]:
        """The state of a step, each leaf read straight to where the program's plan puts it.

        Every byte that was written is checked first. Where the newest checkpoint is damaged, a warning says so and
        the newest whole one is taken.

        With `into`, only what the checkpoint has is read, and the rest stays as it is there: parameters for another
        optimizer, a trained model inside of a larger one. A warning lists what was asked for and is not there.

        Args:
            program: its plan says paths, shapes, dtypes and shardings.
            step: the step; the newest one that is whole if None.
            into: a state of the program, such as `program.init(key)`; used up, since what is read takes the memory of
                what was there.
            only: patterns of the leaves that are read into it, such as `params.**`.
            names: rules (path in the checkpoint, path of the program's leaf) for leaves that had another path, such as
                `("params.**", "params.base.**")`; all others keep theirs.

        Returns:
            The step that the state is after, and the state.

        Raises:
            CheckpointError: there is no such checkpoint, its files are damaged, or it is of another state than the
                program's, or patterns or names match nothing; every file and every difference is listed, and nothing
                was loaded.
            ProgramError: the mesh is of compile-only devices.
        """
        if not isinstance(program, Program):
            raise CheckpointError(
                f"a {type(program).__name__} cannot take a checkpoint"
                "\n  fix: restore(outlay.program(...)), which says where every leaf goes"
            )
        if into is None and (only != "**" or names):
            raise CheckpointError(
                f"only={only!r} and names={names!r:.60} read a part of a state, and the rest is not there"
                "\n  fix: into=program.init(key)"
            )
        check_runnable(program.mesh, "a state cannot be restored")
        self.wait()
        saved_step = as_first_finds(lambda: self._choose(step))
        folder = self._folder.step_folder(saved_step)
        manifest = read_manifest(folder)
        if isinstance(manifest, str):  # the first process sees it, this one does not
            raise CheckpointError(f"{manifest}\n  fix: a folder that every process of the job sees")
        expected = dict(_leaves(unpadded_state(program)))
        if into is None:
            check_same_state(folder, manifest, expected)
            part, unchanged = {path: path for path in expected}, {}
        else:
            unchanged = leaves_of(program, into)
            part = part_of(folder, manifest, expected, only, name_rules(names))
            free([unchanged.pop(path) for path in part], unchanged.values())
        try:
            read = self._array_files().read(folder / ARRAYS, {saved: expected[path] for path, saved in part.items()})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{folder} has the bytes that were written, and yet cannot be read: {in_short(error)}"
                "\n  fix: restore another step"
            ) from error
        leaves = [read[part[path]] if path in part else unchanged[path] for path in expected]
        return saved_step, padded_state(program, jax.tree.unflatten(jax.tree.structure(program.state_shapes), leaves))

    def _choose(self, step: int | None) -> int:
        """The step to restore, every byte of it checked."""
        steps = self._folder.present()
        if step is not None and step not in steps:
            has = f"it has those of steps {', '.join(map(str, steps))}" if steps else "it has none"
            raise CheckpointError(f"{self.path} has no checkpoint of step {step}; {has}")
        if not steps:
            raise CheckpointError(f"there is no checkpoint in {self.path}\n  fix: another folder, or save one first")
        damaged: dict[int, list[str]] = {}
        for number in [step] if step is not None else reversed(steps):
            lines = self._folder.damage(number, contents=True)
            if not lines:
                if damaged:
                    passed = f"step {number} is restored, since what is newer is damaged:"
                    warnings.warn("\n".join([passed, *_listed(damaged)]), CheckpointWarning, stacklevel=4)
                return number
            damaged[number] = lines
        whole = [number for number in self.steps() if number not in damaged]
        fix = f"restore step {whole[-1]}" if whole else "restore a copy of these files"
        headline = f"{counted(len(damaged), 'damaged checkpoint')} in {self.path}; nothing was loaded:"
        raise CheckpointError("\n".join([headline, *_listed(damaged), f"  fix: {fix}"]))

    def _check_is_newest(self, step: int) -> None:
        newest = max(self.steps(), default=-1)
        if step <= newest:
            raise CheckpointError(
                f"step {step} cannot be saved to {self.path}: its newest checkpoint is of step {newest}, and only the "
                f"last {self._keep} are kept\n  fix: another folder, or remove the checkpoints after step {step - 1}"
            )

    def _take(self) -> None:
        """Take the folder, once: the first process for all of them, which then see its mark."""

        def take() -> int:
            self._folder.own.take()
            return 1

        if not self._is_taken:
            as_first_finds(take)
            self._is_taken = True

    def _give_up(self, partial: Path) -> None:
        """Leave nothing of a save that failed, neither on disk nor in what the next one is told."""
        if self._arrays is not None and jax.process_count() == 1:  # of several, others may never end their part
            self._arrays.give_up()
        self._folder.discard(partial)

    def _warn_of_what_is_left(self) -> None:
        left, self._left = self._left, []
        new = [line for line in dict.fromkeys(left) if line not in self._warned]
        self._warned.update(new)
        if new:
            lines = [f"what is old in {self.path} was not all removed; new checkpoints are saved all the same:", *new]
            warnings.warn("\n  ".join(lines), CheckpointWarning, stacklevel=3)

    def _array_files(self) -> ArrayFiles:
        if self._arrays is None:
            self._arrays = ArrayFiles()
        return self._arrays


def _leaves(tree: Any) -> list[tuple[str, Any]]:
    return flatten_paths(tree)[0]


def _arrays(state: Any) -> dict[str, jax.Array]:
    """The leaves of a state as arrays that can be saved.

    Raises:
        CheckpointError: some cannot, or there are none.
    """
    problems = non_arrays(state)
    if problems:
        raise CheckpointError(
            f"a checkpoint holds arrays, and {counted(len(problems), 'leaf is none', 'leaves are none')}", problems
        )
    arrays = {path: leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf) for path, leaf in _leaves(state)}
    if not arrays:
        raise CheckpointError("the state holds no array, so that there is nothing to save\n  fix: save what init made")
    traced = [path for path, leaf in arrays.items() if isinstance(leaf, Tracer)]
    if traced:
        raise CheckpointError(
            f"{counted(len(traced), 'leaf is a value', 'leaves are values')} inside of jax.jit, jax.grad or the "
            f"like, such as {traced[0]}"
            "\n  fix: save outside of it, what it returns"
        )
    donated = [path for path, leaf in arrays.items() if leaf.is_deleted()]
    if donated:
        fix = "save the state that the program returned: state, _ = program(state, batch)"
        raise CheckpointError(
            f"{counted(len(donated), 'leaf was', 'leaves were')} donated to a call that this state was given to",
            [Problem("used up", path, "its memory was handed on (donated)", fix) for path in donated],
        )
    return arrays


def _listed(damaged: Mapping[int, list[str]]) -> list[str]:
    return [f"  step {step}: {line}" for step, lines in damaged.items() for line in lines]
