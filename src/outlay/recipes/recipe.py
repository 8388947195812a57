"""A recipe: a ready workload, with the layouts that it can be run under."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, get_args

import optax

from outlay.core.error_types import RecipeError
from outlay.core.one_line import OneLine
from outlay.graph.graph_loop import GraphLoop
from outlay.layout.layout import Layout
from outlay.layout.placement import replicate
from outlay.layout.strategies import data_parallel, fsdp, zero1, zero2
from outlay.program.modes import Mode
from outlay.program.program import Program
from outlay.recipes.smaller_mesh import SmallerMesh
from outlay.train.data import Data, TrainData
from outlay.train.evaluate import evaluate
from outlay.train.objective import Loss, Reduction
from outlay.train.step import init_state, train_step

DEFAULT_MESH = "data=-1"
"""The mesh of a recipe that names none: all devices along one axis."""


@dataclass(frozen=True)
class Recipe(OneLine):
    """A complete workload: model, data and layouts. The command line only picks and overrides.

    A recipe file holds a function without parameters that returns one: `outlay run path/to/file.py:function`.

    Attributes:
        name: what runs of it are called.
        init: `init(key) -> state`.
        step: `step(state, batch) -> (state, outputs)`, with outputs a dictionary of scalars.
        data: `data[step]` is the batch of a global step.
        steps: the number of steps of a run, by default.
        layouts: the layouts it can be run under, by name; the first is the default. A function makes one for a number
            of devices.
        meshes: the mesh, as text, of each layout that needs another than `data=-1`, by the layout's name.
        modes: the mode of each layout that needs another than `mode`, by the layout's name.
        evaluate: `evaluate(program, state)` gives numbers on data that training has not seen; None to leave it out.
        sample: `sample(program, state)` gives text to show after a run, such as what a language model writes; None to
            leave it out.
        begin: `begin(program, state)` gives the state that training begins with, of one that `program.init` made: it
            may read weights that somebody else trained. A run that is continued does not call it.
        seed: the seed of the state's PRNG key.
        mode: the mode that the step is written for, see `outlay.program`.
        record: what a run records of the state: patterns of paths, such as `params.**.bias`.
        stride: the number of steps from one record to the next.
        parts: names of the parts in which step and init take and return the state, as of `outlay.program`.
        small: `small(less)` makes the same recipe with sizes that any machine can compute, by which `outlay verify`
            judges one that is too big. `less` is a `SmallerMesh`: `less.size(4096, at_least=256)` is a size that the
            axes of the smaller mesh divide as they divide 4096, and `less.batch(256)` a batch for it.

    Raises:
        RecipeError: a field is invalid; all such fields are listed.
    """

    runner: ClassVar[str] = "outlay.recipes.training_run:TrainingRun"
    """The kind of run, a `RecipeRun` as `module:class`, imported when it is first run."""

    name: str
    init: Callable[[Any], Any]
    step: Callable[[Any, Any], tuple[Any, dict[str, Any]]]
    data: Data
    steps: int
    layouts: Mapping[str, Layout | Callable[[int], Layout]]
    meshes: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, Mode] = field(default_factory=dict)
    evaluate: Callable[[Program, Any], dict[str, float]] | None = None
    sample: Callable[[Program, Any], str] | None = None
    begin: Callable[[Program, Any], Any] | None = None
    seed: int = 0
    mode: Mode = "auto"
    record: Sequence[str] = ()
    stride: int = 1
    parts: Sequence[str] = ()
    small: Callable[[SmallerMesh], Recipe] | None = None

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise RecipeError("\n  ".join([f"the recipe {self.name!r} cannot be used:", *problems]))

    @classmethod
    def training(
        cls,
        name: str,
        *,
        init_params: Callable[[Any], Any],
        loss: Loss,
        optimizer: optax.GradientTransformation,
        train: Any,
        test: Any,
        batch_size: int,
        steps: int,
        accumulate: int = 1,
        model_state: bool = False,
        groups: int | None = None,
        reduction: Reduction | None = None,
        metrics: Collection[str] = (),
        per_example_gradients: bool = False,
        layouts: Mapping[str, Layout] | None = None,
        meshes: Mapping[str, str] | None = None,
        sample: Callable[[Program, Any], str] | None = None,
        begin: Callable[[Program, Any], Any] | None = None,
        seed: int = 0,
        small: Callable[[SmallerMesh], Recipe] | None = None,
    ) -> Recipe:
        """Return a recipe that trains any model by a loss.

        Args:
            name: what runs of it are called.
            init_params: `init_params(key) -> params`, or with `model_state` a pair of both.
            loss: `loss(params, batch, keys) -> (losses, metrics)`; see `outlay.train_step`.
            optimizer: any optax optimizer.
            train: the training examples, a tree of arrays with one entry per example, or whatever `outlay.TrainData`
                takes, such as examples in files.
            test: the held-out examples, alike.
            batch_size: examples a step.
            steps: how many steps.
            accumulate: microbatches a step.
            model_state: the loss takes and returns a state of the model, such as the averages of BatchNorm.
            groups: how many groups of samples each have statistics of their own; see `outlay.train_step`.
            reduction: the loss returns one number for its batch, the `mean` or the `sum`; see `outlay.train_step`.
            metrics: what else to record of each step, such as `grad_norm`; see `outlay.train_step`.
            per_example_gradients: give the optimizer one gradient per sample; see `outlay.train_step`.
            layouts: layouts by name, the default first; without them `dp`, `replicated`, `zero1`, `zero2`, `fsdp`.
            meshes: meshes of layouts that need another than `data=-1`.
            sample: as for `Recipe`.
            begin: as for `Recipe`.
            seed: the seed of the parameters, the dropout and the order of the examples.
            small: as for `Recipe`.

        Example:
            >>> def loss(params, batch, keys):
            ...     return (batch["x"] @ params["w"] - batch["y"]) ** 2, {}
            >>> x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
            >>> examples = {"x": x, "y": x @ np.ones(3, np.float32)}
            >>> recipe = outlay.Recipe.training(
            ...     "line", init_params=lambda key: {"w": jnp.zeros(3)}, loss=loss, optimizer=optax.sgd(0.1),
            ...     train=examples, test=examples, batch_size=16, steps=10)
            >>> list(recipe.layouts)
            ['dp', 'replicated', 'zero1', 'zero2', 'fsdp']
        """
        return cls(
            name=name,
            init=init_state(init_params, optimizer, model_state=model_state),
            step=train_step(
                loss,
                optimizer,
                accumulate=accumulate,
                model_state=model_state,
                groups=groups,
                reduction=reduction,
                metrics=metrics,
                per_example_gradients=per_example_gradients,
            ),
            data=TrainData(train, batch_size=batch_size, seed=seed),
            steps=steps,
            layouts=training_layouts() if layouts is None else layouts,
            meshes=meshes or {},
            evaluate=lambda program, state: evaluate(program, state, test, loss=loss, reduction=reduction),
            sample=sample,
            begin=begin,
            seed=seed,
            small=small,
        )

    def recording(self, record: Sequence[str], stride: int = 1) -> Recipe:
        """Return the recipe with these leaves of its state recorded.

        Args:
            record: patterns of their paths, such as `params.**.bias`.
            stride: the number of steps from one record to the next.
        """
        return dataclasses.replace(self, record=tuple(record), stride=stride)

    @property
    def graph_loop(self) -> GraphLoop | None:
        """Its step, if that is a `GraphLoop`, whose parts may run on devices of their own."""
        return self.step if isinstance(self.step, GraphLoop) else None

    @property
    def default_layout(self) -> str:
        """The name of the default layout."""
        return next(iter(self.layouts))

    def mesh_of(self, layout: str) -> str:
        """Return the mesh of a layout, as text."""
        return self.meshes.get(layout, DEFAULT_MESH)

    def mode_of(self, layout: str) -> Mode:
        """Return the mode in which a layout is executed."""
        return self.modes.get(layout, self.mode)


def _problems(recipe: Recipe):
    if not isinstance(recipe.name, str) or not recipe.name:
        yield f"name must be a text such as 'digits', not {recipe.name!r}"
    for field_name in ("init", "step"):
        if not callable(getattr(recipe, field_name)):
            yield f"{field_name} must be a function, not a {type(getattr(recipe, field_name)).__name__}"
    for field_name in ("evaluate", "sample", "begin", "small"):
        value = getattr(recipe, field_name)
        if value is not None and not callable(value):
            yield f"{field_name} must be a function or None, not a {type(value).__name__}"
    if not hasattr(recipe.data, "__getitem__"):  # an iterator could not be continued from a step (decision 50)
        yield f"data must give the batch of a step as data[step]; a {type(recipe.data).__name__} does not"
    if not isinstance(recipe.steps, int) or recipe.steps < 1:
        yield f"steps must be a whole number of at least 1, not {recipe.steps!r}"
    for where, mode in {
        "mode": recipe.mode,
        **{f"modes[{name!r}]": mode for name, mode in recipe.modes.items()},
    }.items():
        if mode not in get_args(Mode):
            yield f"{where} must be one of {', '.join(get_args(Mode))}, not {mode!r}"
    if not recipe.layouts:
        yield "layouts is empty: give at least one, such as {'dp': outlay.data_parallel()}"
    for name, layout in recipe.layouts.items():
        if not isinstance(layout, Layout) and not callable(layout):
            yield f"layouts[{name!r}] must be an outlay.Layout, not a {type(layout).__name__}"
    for field_name in ("meshes", "modes"):
        for name in getattr(recipe, field_name):
            if name not in recipe.layouts:
                yield f"{field_name}[{name!r}] names no layout; the layouts are {', '.join(recipe.layouts)}"


MIN_SIZE = 2**10
"""Elements below which an array stays whole. Small, so that the layouts differ for small models too."""


def training_layouts() -> dict[str, Layout]:
    """Return layouts by name, over one axis `data`: `dp`, `replicated`, `zero1`, `zero2`, `fsdp`.

    They are for any model, so an array without a divisible dim stays whole, and the plan says so.
    """
    return {
        "dp": data_parallel(),
        # The baseline: every device does all the work on all the data.
        "replicated": Layout([("**", replicate()), ("batch.**", replicate())]),
        "zero1": zero1(min_size=MIN_SIZE, otherwise="replicate") + data_parallel(),
        "zero2": zero2(min_size=MIN_SIZE, otherwise="replicate") + data_parallel(),
        "fsdp": fsdp(min_size=MIN_SIZE, otherwise="replicate") + data_parallel(),
    }
