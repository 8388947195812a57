"""Checkpoints of a run: saved asynchronously, restored onto any arrangement of devices."""

from __future__ import annotations

import operator
import os
import socket
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Self

import jax
import jax.numpy as jnp
from jax.core import Tracer

from outlay.arrays.host_values import take_tree
from outlay.core.array_leaves import split_objects, used_up
from outlay.core.error_types import CheckpointError, CheckpointWarning
from outlay.core.flat_nodes import users_nodes
from outlay.core.paths import flatten_paths
from outlay.core.public_names import called_as
from outlay.core.quantities import counted
from outlay.devices.mesh_info import check_runnable, is_first
from outlay.program.program import Program
from outlay.train.checkpoint.array_files import (
    ArrayFiles,
    InBackground,
    padded_state,
    saved_leaves,
    summary_of,
    unpadded_state,
    written_by,
)
from outlay.train.checkpoint.folder import CheckpointFolder
from outlay.train.checkpoint.integrity import ARRAYS, Manifest, read_manifest, saved_files
from outlay.train.checkpoint.select_leaves import NameRules, check_same_state, free, leaves_of, name_rules, part_of
from outlay.train.multihost import on_process_0, wait_for_all


class Checkpoints:
    """The last few checkpoints of a run, in a folder that all its processes can see.

    A checkpoint has global arrays by their dotted paths and does not depend on a mesh: restore it onto any mesh,
    layout, number of devices or processes. It appears only once it is complete: a run that is killed at any moment
    keeps its earlier checkpoints.

    In a job of several processes, every process must make the same calls in the same order.

    Args:
        folder: the folder; created by the first save.
        keep: the number of checkpoints to keep.

    Raises:
        CheckpointError: `keep` is less than 1.

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

    @called_as(
        'outlay.Checkpoints("checkpoints")', path="folder, the first argument", directory="folder, the first argument"
    )
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

    def __repr__(self) -> str:
        return f"<Checkpoints in {self.path}>"  # and not their steps, which are on a disk

    def __getattr__(self, name: str) -> NoReturn:
        what = f"'Checkpoints' object has no attribute {name!r}"
        if name.startswith("_"):  # copying and notebooks ask whether there is one
            raise AttributeError(what)
        from outlay.core.guesses import attribute_guess
        from outlay.core.suggest import did_you_mean

        if fix := attribute_guess(type(self), name):
            raise AttributeError(f"{what}\n  fix: {fix}")
        raise AttributeError(f"{what}: {did_you_mean(name, [each for each in dir(self) if not each.startswith('_')])}")

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
        """List the steps that can be restored, oldest first: those with all files in their full size."""
        return self._folder.whole()

    def last_saved(self) -> int | None:
        """Return the newest step that can be restored, after waiting for a save in progress."""
        if jax.process_count() == 1:  # several processes stop at different steps, and would wait forever
            self.wait()
        return max(self.steps(), default=None)

    def exist(self) -> bool:
        """Return whether there is any checkpoint, even a damaged one; all processes get the same answer."""
        return bool(on_process_0(lambda: len(self._folder.present())))

    def save(self, step: int, state: Any) -> None:
        """Save a state. Returns when the arrays are copied; they are written in the background.

        Waits for the previous save first, so that only one checkpoint at a time is in host memory. The first save locks
        the folder: until `close`, or the end of the program, no other program can save there.

        Args:
            step: the global step after which the state is taken.
            state: any tree of arrays; `program.crop(state)` if the program pads rows that do not divide by the devices.

        Raises:
            CheckpointError: leaves are not arrays or were donated, there is a checkpoint of this or a later step, the
                folder is not Outlay's, another program saves to it, it cannot be written, or the previous save failed.
                Existing checkpoints stay intact, and the next save starts afresh.
        """
        try:
            step = operator.index(step)
        except TypeError as error:
            raise CheckpointError(f"step {step!r:.40} cannot be saved: it is not a whole number") from error
        if step < 0:
            raise CheckpointError(f"step {step} cannot be saved: steps are counted from 0")
        self.wait()
        arrays = _arrays(state)
        self._lock_folder()
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
            # Ctrl-C must stay what it is, and our own errors say enough.
            if not isinstance(error, Exception) or isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{failed}: {summary_of(error)}") from error

        def complete() -> None:  # holds no reference to an array, so that the copies can be freed
            try:
                self._array_files().finish_writing()
                # The manifest comes last and the rename after it, so that a kill at any moment leaves no incomplete
                # checkpoint under the name of a step.
                if is_first():
                    manifest = Manifest(step, leaves, saved_files(partial), writer)
                    self._left += self._folder.complete(partial, manifest)
                    self._left += self._folder.keep_last(self._keep)
            except BaseException:
                self._give_up(partial)
                raise

        self._saving = InBackground(complete, failed)

    def wait(self) -> None:
        """Wait until the last save is on disk, in all processes. Call it before the program ends.

        An old checkpoint that cannot be removed only causes a warning, since the new one is complete.

        Raises:
            CheckpointError: the checkpoint could not be written; earlier checkpoints are intact.
        """
        if self._saving is None:
            return
        saving, self._saving = self._saving, None
        saving.finish()
        self._warn_of_what_is_left()
        wait_for_all(f"outlay checkpoints in {self.path}")

    def raise_if_failed(self) -> None:
        """Raise if the background save has already failed, without waiting. Call it after each step of a loop.

        Raises:
            CheckpointError: as for `wait`.
        """
        if self._saving is not None and self._saving.has_failed:
            saving, self._saving = self._saving, None
            saving.finish()

    def close(self) -> None:
        """Unlock the folder for other programs. A later `save` locks it again.

        Call `wait` first, as leaving a `with` block does. After an exception, the background save still completes, and
        the next call raises its error.
        """
        if self._saving is not None:
            if jax.process_count() > 1:
                return  # other processes may have failed and never finish the save; the lock ends with this process
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
        """Restore the state of a step; each leaf is read directly into the sharding of the program's plan.

        All checksums are verified first. If the newest checkpoint is damaged, a warning says so and the newest intact
        one is restored.

        With `into`, only leaves of the checkpoint are read and the rest of that state is kept: parameters for another
        optimizer, or a trained model inside a larger one. A warning lists requested leaves that the checkpoint lacks.

        Args:
            program: the program whose plan gives the paths, shapes, dtypes and shardings.
            step: the step; None for the newest intact one.
            into: a state of the program, such as `program.init(key)`; it is donated, since the restored leaves reuse
                its memory.
            only: patterns of the leaves to read into it, such as `params.**`.
            names: rules (path in the checkpoint, path in the program) for renamed leaves, such as
                `("params.**", "params.base.**")`; other leaves keep their paths.

        Returns:
            The step, and the state after it.

        Raises:
            CheckpointError: there is no such checkpoint, its files are damaged, its state is not the program's, or
                patterns or names match nothing. The message lists every file and difference, and nothing is loaded.
            ProgramError: the mesh is of compile-only devices.
        """
        if not isinstance(program, Program):
            raise CheckpointError(
                f"a {type(program).__name__} cannot take a checkpoint"
                "\n  fix: restore(outlay.program(...)), whose plan places every leaf"
            )
        if into is None and (only != "**" or names):
            raise CheckpointError(
                f"only={only!r} and names={names!r:.60} read a part of a state, and the rest is not there"
                "\n  fix: into=program.init(key)"
            )
        check_runnable(program.mesh, "a state cannot be restored")
        self.wait()
        # Process 0 chooses for all: on a shared file system, another process may still see an older list of
        # checkpoints.
        saved_step = on_process_0(lambda: self._choose(step))
        folder = self._folder.step_folder(saved_step)
        manifest = read_manifest(folder)
        if isinstance(manifest, str):  # process 0 sees the file, this process does not
            raise CheckpointError(f"{manifest}\n  fix: a folder that every process of the job sees")
        expected = dict(flatten_paths(unpadded_state(program))[0])
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
                f"{folder} has the bytes that were written, and yet cannot be read: {summary_of(error)}"
                "\n  fix: restore another step"
            ) from error
        leaves = [read[part[path]] if path in part else unchanged[path] for path in expected]
        state = jax.tree.unflatten(jax.tree.structure(program.state_shapes), leaves)
        return saved_step, program.state_of(users_nodes(padded_state(program, state)))

    def _choose(self, step: int | None) -> int:
        """Choose the step to restore, and verify its checksums."""
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

    def _lock_folder(self) -> None:
        """Lock the folder once: the first process does it for all, and the others then see its mark."""

        def take() -> int:
            self._folder.own.take()
            return int(self._folder.own.id or "0", 16)

        if not self._is_taken:
            first, own = on_process_0(take), self._folder.own.id
            if own is None or int(own, 16) != first:
                is_other = "has the mark of another folder" if own else "has no mark"
                raise CheckpointError(
                    f"process {jax.process_index()} on {socket.gethostname()} does not see the folder {self.path} that "
                    f"process 0 has marked: here it {is_other}, so it is not the same folder in all processes"
                    "\n  fix: a folder on a file system that all of them share"
                )
            self._is_taken = True

    def _give_up(self, partial: Path) -> None:
        """Clean up after a failed save: remove its files, and drop its error, which the next save must not raise."""
        if self._arrays is not None and jax.process_count() == 1:  # other processes may never finish their part
            self._arrays.give_up()
        self._folder.discard(partial)

    def _warn_of_what_is_left(self) -> None:
        left, self._left = self._left, []
        new = [line for line in dict.fromkeys(left) if line not in self._warned]
        self._warned.update(new)
        if new:
            lines = [f"old checkpoints in {self.path} could not all be removed; new ones are saved all the same:", *new]
            warnings.warn("\n  ".join(lines), CheckpointWarning, stacklevel=3)

    def _array_files(self) -> ArrayFiles:
        if self._arrays is None:
            self._arrays = ArrayFiles()
        return self._arrays


def _arrays(state: Any) -> dict[str, jax.Array]:
    """Return the leaves of a state by path, after checking that they can be saved.

    Raises:
        CheckpointError: some leaves cannot be saved, or there are none.
    """
    _, state = split_objects(state)
    taken, problems = take_tree(state)
    if problems:
        raise CheckpointError(
            f"a checkpoint holds arrays, and {counted(len(problems), 'leaf is not one', 'leaves are not')}", problems
        )
    arrays = {
        path: leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf) for path, leaf in flatten_paths(taken)[0]
    }
    if not arrays:
        raise CheckpointError("the state holds no array, so that there is nothing to save\n  fix: save what init made")
    traced = [path for path, leaf in arrays.items() if isinstance(leaf, Tracer)]
    if traced:
        raise CheckpointError(
            f"{counted(len(traced), 'leaf is a value', 'leaves are values')} inside of jax.jit, jax.grad or the "
            f"like, such as {traced[0]}"
            "\n  fix: save outside of it, what it returns"
        )
    fix = "save the state that the program returned: state, _ = program(state, batch)"
    if problems := used_up(state, fix):
        raise CheckpointError(
            f"{counted(len(problems), 'leaf has', 'leaves have')} no memory any more, so the state cannot be saved",
            problems,
        )
    return arrays


def _listed(damaged: Mapping[int, list[str]]) -> list[str]:
    return [f"  step {step}: {line}" for step, lines in damaged.items() for line in lines]
