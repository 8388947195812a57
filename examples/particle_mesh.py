"""Gravity of particles on a mesh, over pencils: a kind of run of its own, written on `outlay.kit` alone.

    outlay run examples/particle_mesh.py:recipe --devices 8 --layout pencils
    outlay verify examples/particle_mesh.py:recipe --devices 8 --layout pencils

Each particle begins in a cell of its own, and moves less than `REACH` cells from there, so the mass of a cell comes
from its neighbours: a device needs a border of `REACH` cells of theirs, a halo. The potential is a convolution, by FFTs
along one dim after the other, on pencils along that dim. The step is written for one device and names its pencils; the
layout says where they lie. A `recipe` takes `--cells 32` and `--dt 0.1`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import outlay
from outlay import kit

REACH = 1
"""A particle stays so many cells from where it begins; its mass then reaches cells that are `REACH` away at most."""


OFFSETS = range(-REACH, REACH + 1)


def share(displacement: jax.Array, *offset: int) -> jax.Array:
    """Return which share of each particle is so many cells from where it began: clouds as large as a cell."""
    distance = jnp.abs(displacement - jnp.array(offset, displacement.dtype).reshape(1, 1, 1, 3))
    return jnp.prod(jnp.maximum(1 - distance, 0), axis=-1)


def density(displacement: jax.Array) -> jax.Array:
    """Paint the particles, of mass 1, onto the periodic mesh.

    Where a dim is split, XLA makes of `jnp.roll` an exchange of halos; sums along one dim after the other need few.
    """
    mass = jnp.zeros(displacement.shape[:3], displacement.dtype)
    for i in OFFSETS:
        plane = jnp.zeros_like(mass)
        for j in OFFSETS:
            plane += jnp.roll(sum(jnp.roll(share(displacement, i, j, k), k, 2) for k in OFFSETS), j, 1)
        mass += jnp.roll(plane, i, 0)
    return mass


def felt(field: jax.Array, displacement: jax.Array) -> jax.Array:
    """Return what each particle feels of a field: of each cell as much as the particle is painted there."""
    total = jnp.zeros_like(field)
    for i in OFFSETS:
        of_plane = jnp.roll(field, -i, 0)
        for j in OFFSETS:
            of_line = jnp.roll(of_plane, -j, 1)
            for k in OFFSETS:
                total += share(displacement, i, j, k)[..., None] * jnp.roll(of_line, -k, 2)
    return total


def transformed(x: jax.Array, transform) -> jax.Array:
    """Transform all dims, each on pencils along it; the layout's rules for the names say which dims those split."""
    for dim, name in ((2, "pencils_z"), (1, "pencils_y"), (0, "pencils_x")):
        lines = outlay.constrain(x, name)
        x = outlay.constrain(jnp.moveaxis(transform(jnp.moveaxis(lines, dim, 2), axis=2), 2, dim), f"{name}_done")
    return outlay.constrain(x, "field")


def potential(mass: jax.Array) -> jax.Array:
    """Solve Poisson's equation: the Laplacian of the potential is how much denser a cell is than the mean."""
    waves = [2 * jnp.pi * jnp.fft.fftfreq(size).astype(mass.dtype) for size in mass.shape]
    squares = [(2 * jnp.sin(wave / 2)) ** 2 for wave in waves]  # of the differences between neighbours
    square = squares[0][:, None, None] + squares[1][None, :, None] + squares[2][None, None, :]
    inverse = jnp.where(square > 0, -1 / jnp.where(square > 0, square, 1), 0)  # the mean pulls nobody
    return transformed(inverse * transformed((mass - 1).astype(jnp.complex64), jnp.fft.fft), jnp.fft.ifft).real


def acceleration(displacement: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the acceleration of each particle, and the potential energy of all."""
    mass = density(displacement)
    field = potential(mass)
    forces = jnp.stack([(jnp.roll(field, 1, dim) - jnp.roll(field, -1, dim)) / 2 for dim in range(3)], axis=-1)
    # Felt as it is painted, so no particle pulls itself.
    return felt(forces, displacement), jnp.sum((mass - 1) * field) / 2


def step(state: dict[str, jax.Array], batch: dict[str, jax.Array]):
    """Kick by half a step, drift, and kick again."""
    dt = batch["dt"]
    momentum = state["momentum"] + dt / 2 * state["force"]
    displacement = state["displacement"] + dt * momentum
    force, bound = acceleration(displacement)
    momentum = momentum + dt / 2 * force
    kinetic = jnp.sum(momentum**2) / 2
    outputs = {
        "energy": kinetic + bound,
        "kinetic": kinetic,
        "momentum": jnp.max(jnp.abs(jnp.sum(momentum, axis=(0, 1, 2)))),
        "reach": jnp.max(jnp.abs(displacement)),
    }
    return {"displacement": displacement, "momentum": momentum, "force": force}, outputs


def init_of(cells: int):
    """Return an init function: long waves, of phases drawn at random, displace particles that are at rest."""

    def init(key: jax.Array) -> dict[str, jax.Array]:
        place = jnp.arange(cells, dtype=jnp.float32) / cells
        phases = jax.random.uniform(key, (3, 3), maxval=2 * jnp.pi)
        waves = [jnp.sin(2 * jnp.pi * place[:, None] + phases[dim][None]) for dim in range(3)]
        displacement = 0.2 * jnp.stack(
            [waves[0][:, None, None, i] * waves[1][None, :, None, i] * waves[2][None, None, :, i] for i in range(3)],
            axis=-1,
        )
        force, _ = acceleration(displacement)
        return {"displacement": displacement, "momentum": jnp.zeros_like(displacement), "force": force}

    return init


class Times:
    """The batch of a step is its length."""

    def __init__(self, dt: float) -> None:
        self.dt = dt

    def __getitem__(self, step: int) -> dict[str, np.ndarray]:
        return {"dt": np.asarray(self.dt, np.float32)}


class ParticleMesh(outlay.Recipe):
    """A recipe that is run by `ParticleRun`."""

    runner: ClassVar[str] = f"{__name__}:ParticleRun"


def recipe(cells: int = 16, dt: float = 0.05, steps: int = 20) -> ParticleMesh:
    """Return the recipe: the particles of a cube, in pencils along z, and the layouts of the FFTs on their way."""
    pencils = {
        "pencils_z": P("a", "b", None),
        "pencils_y": P("a", None, "b"),
        "pencils_x": P(None, "a", "b"),
    }
    named = [(f"{name}{end}", spec) for name, spec in pencils.items() for end in ("", "_done")]
    rules = [*named, ("field", P("a", "b")), ("batch.**", outlay.replicate()), ("**", P("a", "b"))]
    alone = outlay.Layout([("**", outlay.replicate()), ("batch.**", outlay.replicate())])
    return ParticleMesh(
        "particle_mesh",
        init_of(cells),
        step,
        Times(dt),
        steps=steps,
        layouts={"pencils": outlay.Layout(rules), "replicated": alone},
        meshes={"pencils": "a=-1,b=2"},
    )


@dataclass(frozen=True, kw_only=True)
class ParticleResult(outlay.recipes.Result):
    """The result of a run.

    Attributes:
        history: the outputs of each step.
    """

    history: tuple[Mapping[str, float], ...]

    @property
    def facts(self) -> dict[str, str]:
        """Return the result in words, by name."""
        first, last = self.history[0], self.history[-1]
        drift = abs(last["energy"] - first["energy"]) / max(last["kinetic"], 1e-30)
        return {
            "ran": f"{self.recipe}, layout {self.layout}, {self.devices}",
            "energy": f"{last['energy']:.4g}, which has drifted by {drift:.1e} of the kinetic energy",
            "reach": f"{last['reach']:.2f} of {kit.counted(REACH, 'cell')}",
            "time": f"{kit.counted(self.num_steps, 'step')}{self.continued} in {self.seconds:.1f} s{self.caveat}",
        }


class ParticleLoop(kit.StepLoop):
    """The steps of a run, whose outputs go into its metrics."""

    def __init__(self, run: ParticleRun, metrics: kit.MetricsFile) -> None:
        state = run.start.state if run.start else None
        super().__init__(run.program, run.num_steps, step=run.first_step, state=state, saving=run.saving)
        self.recipe, self.metrics, self.history = run.recipe, metrics, [*metrics.earlier]

    def begin(self, stack: contextlib.ExitStack) -> float:
        """Make the first state; return the seconds of the steps before the run was continued."""
        stack.enter_context(self.metrics)
        if self.state is None:
            self.state = self.program.init(jax.random.key(self.recipe.seed))
        return float(self.history[-1]["seconds"]) if self.history else 0.0

    def call(self, start: int, stop: int) -> Any:
        """Dispatch a step."""
        self.state, outputs = self.program(self.state, self.recipe.data[start])
        return outputs

    def fetch(self, results: Any) -> dict[str, float]:
        """Wait for the outputs of a step."""
        return {name: float(value) for name, value in results.items()}

    def record(self, start: int, stop: int, fetched: dict[str, float]) -> str:
        """Write the metrics of a step; return what progress shows of it."""
        if fetched["reach"] > REACH:
            raise outlay.OutlayError(
                f"a particle has moved {fetched['reach']:.2f} cells in step {stop}, and {REACH} is as far as mass is "
                "painted\n  fix: fewer steps, a smaller --dt, or a larger REACH"
            )
        self.history.append({"step": stop, "seconds": self.seconds, **fetched})
        self.metrics.write(self.history[-1])
        return f"energy {fetched['energy']:.4g}"

    def partial(self) -> tuple[Any, str]:
        """Return the metrics so far, and where they are."""
        return self.history, f"; its metrics are in {self.metrics.path}"


class ParticleRun(kit.RecipeRun):
    """Run a `ParticleMesh`."""

    identity = (*kit.RecipeRun.identity, "dt")
    results = ("density.png",)

    def config(self) -> dict[str, Any]:
        """Return what must be the same for a run to be continued."""
        return {"dt": self.recipe.data[0]["dt"].item()}

    def take_steps(self) -> ParticleResult:
        """Take the steps, and write the picture and the report."""
        metrics = kit.MetricsFile(self.folder.metrics_path, after=self.first_step)
        loop = ParticleLoop(self, metrics)
        loop.run(kit.Progress(self.num_steps, "gravity", "{:.1f} steps/s".format) if kit.is_first() else None)
        history = tuple({k: v for k, v in line.items() if k != "seconds"} for line in loop.history)
        result = ParticleResult(**self.result_facts(loop.total_seconds, (), 0), history=history)
        with kit.result_not_lost(result):
            self._write(self.program.gather(loop.state), result)
        return result

    def _write(self, state: dict[str, np.ndarray], result: ParticleResult) -> None:
        if not kit.is_first():
            return
        picture = self.folder.write("density.png", kit.picture_bytes(drawn(np.asarray(state["displacement"]))))
        shown = [kit.png_image("Density", picture, "The mass of each column of cells along z")]
        facts = result.facts
        page = kit.run_page(result.title, facts, self.program.plan, self.folder.record(), pictures=shown)
        self.folder.write_report(page)


def drawn(displacement: np.ndarray) -> Any:
    """Draw the mass along z."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4))
    axes = figure.add_subplot(xlabel="x", ylabel="y")
    columns = np.asarray(density(jnp.asarray(displacement))).sum(axis=2)
    figure.colorbar(axes.imshow(columns.T, origin="lower"), ax=axes, label="particles")
    return figure
