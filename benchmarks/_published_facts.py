"""What the compiler made of a published run: compiled once, in a process of its own, and kept on disk.

Kept are the compiled program as text, the compiler's own account of memory, and where the devices stand. From that
follow facts (the schedule, the peak), and from facts prices, so that a change of either asks no compiler. The facts of
the runs that the repository lists are part of it.
"""

import gzip
import hashlib
import json
import os
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

from _published_rows import RUNS, Run, config_of, read_rows, run_of

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "outlay" / "published"
KNOWN = Path(__file__).parent / "data" / "published_facts.json.gz"
TIMEOUT = 1800
_SIZES = ("argument_size", "output_size", "alias_size", "temp_size")
MEMORY = (*_SIZES, *(f"host_{name}" for name in _SIZES), "peak_memory")
"""The compiler's figures of memory."""


def cached_facts(run: Run, cache: Path):
    """Return the facts of a run whose program is in the cache, or why there is none; None if it is not compiled yet."""
    compiled = cache / f"{_name(run)}.compiled.gz"
    if not compiled.is_file():
        return None
    path = cache / f"{_name(run)}-{_reader()}.facts.gz"
    if not path.is_file():
        _write(path, _facts(_read(compiled), run))
    return _read(path)


def known_facts():
    """Return the facts that the repository has, by the row's name."""
    return _read(KNOWN) if KNOWN.is_file() else {}


def facts_in(known, run: Run):
    """Return the known facts of a run, if it is still built in the same way."""
    facts = known.get(run.id)
    return facts if facts and facts["asked"] == _asked(run) else None


def write_known(facts):
    """Put facts of runs into the repository, in place of all that were there."""
    KNOWN.write_bytes(gzip.compress(json.dumps(facts, sort_keys=True).encode(), 9, mtime=0))


def compile_rows(runs, cache: Path, jobs: int, source: Path = RUNS):
    """Compile what is not in the cache yet, some at a time; what fails is cached with its message.

    Args:
        runs: the runs, first things first.
        cache: the folder of facts.
        jobs: how many at a time.
        source: the file that they stand in.
    """
    cache.mkdir(parents=True, exist_ok=True)
    waiting = [run for run in runs if not (cache / f"{_name(run)}.compiled.gz").is_file()]
    total, running, done = len(waiting), {}, 0
    while waiting or running:
        while waiting and len(running) < jobs:
            run = waiting.pop(0)
            command = [sys.executable, __file__, str(source), run.id, str(cache)]
            with (cache / f"{run.id}.log").open("w") as log:
                running[run.id] = run, subprocess.Popen(command, stdout=log, stderr=log), time.monotonic()
        for name, (run, process, since) in list(running.items()):
            if process.poll() is None and time.monotonic() - since > TIMEOUT:
                process.kill()
                process.wait()
            if process.poll() is not None:
                del running[name]
                done += 1
                if not (cache / f"{_name(run)}.compiled.gz").is_file():
                    _write(cache / f"{_name(run)}.compiled.gz", {"error": _last_line(cache / f"{name}.log")})
                print(f"{done}/{total} {name}: {time.monotonic() - since:.0f} s", file=sys.stderr, flush=True)
        time.sleep(0.5)


def compiled_of(run: Run):
    """Compile a run; return the program, its memory, and its devices."""
    import outlay.models.transformer.layer as transformer
    from outlay.devices.build import mesh as make_mesh
    from outlay.devices.mesh_info import MeshInfo
    from outlay.program.make import program as make_program
    from outlay.recipes.find import find_recipe

    if run.writes_scores:
        transformer.attention = scores_in_memory
    if run.keeps_all:
        transformer.FeedForward.__call__ = keeping_all
    recipe = find_recipe("lm", list(run.words))
    mesh = make_mesh(run.layout.text, target=run.target)
    made = make_program(recipe.step, recipe.init, recipe.data[0], layout=layout_of(run), mesh=mesh)
    start = time.perf_counter()
    compiled = made.compiled
    stats = compiled.memory_analysis()
    return {
        "hlo": compiled.as_text(),
        "memory": {f"{name}_in_bytes": getattr(stats, f"{name}_in_bytes", 0) for name in MEMORY},
        "mesh": MeshInfo.of(mesh).to_dict(),
        "compile_seconds": round(time.perf_counter() - start, 1),
    }


def scores_in_memory(query, key, value, *, causal, window, split):
    """Compute attention as before fused kernels: what Outlay's models no longer do, and older runs did."""
    del split  # the compiler splits products by itself
    import jax

    return jax.nn.dot_product_attention(
        query, key, value, is_causal=causal, local_window_size=window, implementation="xla"
    )


def keeping_all(self, x):
    """Apply a feed-forward layer that keeps what its activation gives, as frameworks that recompute nothing do."""
    from outlay.models.transformer.layer import ACTIVATIONS, cheap, named

    activate, up = cheap(ACTIVATIONS[self.activation]), named(self.up(x), "up")
    return self.down(activate(up) if self.gate is None else activate(named(self.gate(x), "gate")) * up)


def layout_of(run: Run):
    """Return the rules of a run's layout, with those of its products."""
    from outlay.recipes.lm_precision import in_precision

    rules = _where_arrays_live(run)
    return rules if run.precision is None else in_precision({run.layout.name: rules}, run.precision)[run.layout.name]


def _where_arrays_live(run):
    """Return rules that place arrays: those of the recipe where it has them, and others made of the same parts."""
    from jax.sharding import PartitionSpec as P

    from outlay.layout.layout import Layout
    from outlay.layout.pipelines import pipeline
    from outlay.layout.placement import replicate
    from outlay.layout.rule import Rule
    from outlay.layout.strategies import data_parallel, fsdp, zero1, zero2
    from outlay.recipes.lm import inside, megatron

    layout = run.layout
    rules, of_gradients = Layout([]), Layout([])
    if layout.repeats:
        rules += [("params.layers.**", pipeline("stage", microbatches=run.microbatches, repeats=layout.repeats))]
        # Each stage has them, as the first and the last one of these frameworks have.
        outside = ("positions",) if "model" in layout.mesh else ("positions", "embedding", "head")
        rules += [] if layout.params else [Rule(f"params.{name}.**", replicate(), optional=True) for name in outside]
        of_gradients += [("grads.layers.**", P("stage"))]
    if "model" in layout.mesh:
        rules += megatron(config_of(run.row)) + inside("table", P("model")) + inside("head", P(None, "model"))
    if layout.params:
        rules += _kernels(fsdp, layout.params, "params")
    if layout.gradients:
        rules += zero2(layout.optimizer)
    elif layout.optimizer:
        rules += _kernels(zero1, layout.optimizer, "opt_state")
        if "model" in layout.mesh:
            of_gradients += megatron(config_of(run.row), "grads")
        rules += of_gradients + Layout([("grads.**", P())])
    batch = layout.batch if len(layout.batch) > 1 else layout.batch[0]
    if run.target.startswith("tpu"):  # the compiler cannot split their attention kernel by itself
        rules += inside("queries", P(batch, None, "model" if "model" in layout.mesh else None))
    if layout.sequence:
        rules += inside("residual", P(batch, "model")) + inside("branch_input", P(batch))
        rules += inside("branch_output", P(batch))
    else:
        rules += inside("residual", P(batch))
    if len(layout.batch) == 1:
        return rules + data_parallel()
    return rules + Layout([("batch.**", P(batch))]) + Layout([*data_parallel().rules[1:]])


def _kernels(strategy, axis, root):
    """Apply a strategy to kernels and embeddings; what is left is a ten-thousandth of the parameters."""
    return strategy(axis, pattern=f"{root}.**.kernel", min_size=1) + strategy(
        axis, pattern=f"{root}.**.embedding", min_size=1
    )


def _facts(compiled, run):
    """Return what follows from a compiled program; importing what reads it starts no backend."""
    if "error" in compiled:
        return {**compiled, "asked": _asked(run)}
    from outlay.analysis.cost.schedule import schedule_of
    from outlay.analysis.hlo.hlo_memory import peak_bytes
    from outlay.analysis.hlo.parse import parse_hlo
    from outlay.analysis.work.compiled import compiled_work
    from outlay.devices.mesh_info import MeshInfo
    from outlay.devices.target import Target

    module = parse_hlo(compiled["hlo"])
    target, mesh = Target.parse(run.target), MeshInfo.from_dict(compiled["mesh"])
    return {
        "asked": _asked(run),
        "schedule": schedule_of(module, compiled_work(module), target, mesh).to_dict(),
        "memory": compiled["memory"],
        "peak": peak_bytes(module, _stats(compiled["memory"]), is_cpu=False),
        "compile_seconds": compiled["compile_seconds"],
    }


def _stats(memory):
    """Return the compiler's figures of memory as an object; 0 for what it did not say."""
    return SimpleNamespace(**{f"{name}_in_bytes": 0 for name in MEMORY} | memory)


def _asked(run):
    """Return a short name for what is compiled: a row that is built in another way is compiled again."""
    how = ["fused"] if run.target.startswith("tpu") else []
    how += ["whole gradients"] if run.layout.optimizer and not run.layout.gradients else []
    how += ["keeps all"] if run.keeps_all else []
    how += ["products by rules"] if run.precision else []
    how += [f"{run.microbatches} microbatches, {run.layout.repeats} times"] if run.layout.repeats else []
    asked = json.dumps([run.words, run.layout.mesh, run.layout.name, run.target, run.writes_scores, *how])
    return hashlib.sha256(asked.encode()).hexdigest()[:10]


def _name(run):
    return f"{run.id}-{_asked(run)}"


def _reader():
    """Return a short name for the code that reads compiled programs."""
    package = Path(str(resources.files("outlay.analysis")))
    files = [*sorted((package / "hlo").glob("*.py")), *sorted((package / "work").glob("*.py"))]
    files += [package / "cost" / "schedule.py"]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:8]


def _read(path):
    return json.loads(gzip.decompress(path.read_bytes()))


def _write(path, data):
    temporary = path.with_suffix(".part")
    temporary.write_bytes(gzip.compress(json.dumps(data).encode(), 6))
    temporary.replace(path)


def _last_line(log):
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "ended without a word"


def main():
    """Compile one row in this process: `_published_facts.py FILE ID CACHE`."""
    from outlay.core.error_types import OutlayError

    source, name, cache = sys.argv[1:]
    run = run_of(next(row for row in read_rows(source) if row["id"] == name))
    try:
        compiled = compiled_of(run)
    except (OutlayError, ValueError, RuntimeError) as error:
        compiled = {"error": str(error)[:2000]}
    _write(Path(cache) / f"{_name(run)}.compiled.gz", compiled)
    cached_facts(run, Path(cache))


if __name__ == "__main__":
    main()
