"""What the compiler made of a published run: compiled once, in a process of its own, and kept on disk.

Kept are the compiled program as text, the compiler's own account of memory, and where the devices stand. From that
follow facts (the schedule, the peak), and from facts prices, so that a change of either asks no compiler. The facts of
the runs that the repository lists are part of it.
"""

import dataclasses
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

from _published_rows import RUNS, read_rows, runs_of
from _published_run import Run, config_of
from _published_tpu import before_machine_code

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "outlay" / "published"
KNOWN = Path(__file__).parent / "data" / "published_facts.json.gz"
TIMEOUT = 1800
OUTSIDE = ("embedding", "positions", "head")
"""What `lm` has outside of its layers."""
_SIZES = ("argument_size", "output_size", "alias_size", "temp_size")
MEMORY = (*_SIZES, *(f"host_{name}" for name in _SIZES), "peak_memory")
"""The compiler's figures of memory."""


def cached_facts(run: Run, cache: Path):
    """Return the facts of a run whose programs are in the cache, or why there are none; None if it is not compiled yet.

    A pipeline has those of its `programs`, as `programs`.
    """
    if run.programs == (run,):
        return _cached_program(run, cache)
    of = [_cached_program(program, cache) for program in run.programs]
    if None in of:
        return None
    wrong = [one["error"] for one in of if "error" in one]
    return {"asked": _asked(run)} | ({"error": wrong[0]} if wrong else {"programs": of})


def _cached_program(run, cache):
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


def known_run(known, row) -> Run:
    """Return a row as it was built for the known facts; as it is tried first where there are none."""
    ways = runs_of(row)
    return next((run for run in ways if facts_in(known, run)), ways[0])


def facts_in(known, run: Run):
    """Return the known facts of a run, if it is still built in the same way."""
    facts = known.get(run.id)
    return facts if facts and facts["asked"] == _asked(run) else None


def write_known(facts):
    """Put facts of runs into the repository, in place of all that were there."""
    KNOWN.write_bytes(gzip.compress(json.dumps(facts, sort_keys=True).encode(), 9, mtime=0))


def compile_rows(runs, cache: Path, jobs: int, source: Path = RUNS):
    """Compile what is not in the cache yet, some at a time; what the compiler refuses is cached with its message.

    What gave no answer is not cached: it took too long, was ended from outside, or never came to the compiler. Then the
    last line of its log says why, and the next call compiles it again.

    Args:
        runs: the runs, first things first.
        cache: the folder of facts.
        jobs: how many at a time.
        source: the file that they stand in.
    """
    cache.mkdir(parents=True, exist_ok=True)
    programs = [program for run in runs for program in run.programs]
    waiting = [run for run in programs if not (cache / f"{_name(run)}.compiled.gz").is_file()]
    total, running, done = len(waiting), {}, 0
    while waiting or running:
        while waiting and len(running) < jobs:
            run = waiting.pop(0)
            command = [sys.executable, __file__, str(source), run.id, _asked(run), str(cache)]
            with (cache / f"{_name(run)}.log").open("w") as log:
                running[_name(run)] = run, subprocess.Popen(command, stdout=log, stderr=log), time.monotonic()
        for name, (_, process, since) in list(running.items()):
            if process.poll() is None and time.monotonic() - since > TIMEOUT:
                process.kill()
                process.wait()
                with (cache / f"{name}.log").open("a") as log:
                    log.write(f"\nended after {TIMEOUT} s\n")
            if process.poll() is not None:
                del running[name]
                done += 1
                answer = "" if (cache / f"{name}.compiled.gz").is_file() else ", no answer of the compiler"
                print(f"{done}/{total} {name}: {time.monotonic() - since:.0f} s{answer}", file=sys.stderr, flush=True)
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
    recipe = find_recipe(run.recipe, list(run.words))
    mesh = make_mesh(run.layout.text, target=run.target)
    options, start = _options(run, mesh), time.perf_counter()

    def compile_with(more):
        both = dataclasses.replace(options, values={**options.values, **more})
        return make_program(
            recipe.step, recipe.init, recipe.data[0], layout=layout_of(run), mesh=mesh, compiler_options=both
        ).compiled

    text, memory = before_machine_code(compile_with) if run.target.startswith("tpu") else _whole(compile_with({}))
    return {
        "hlo": text,
        "memory": {f"{name}_in_bytes": memory.get(f"{name}_in_bytes", 0) for name in MEMORY},
        "mesh": MeshInfo.of(mesh).to_dict(),
        "compile_seconds": round(time.perf_counter() - start, 1),
    }


def _whole(compiled):
    stats = compiled.memory_analysis()
    return compiled.as_text(), {f"{name}_in_bytes": getattr(stats, f"{name}_in_bytes", 0) for name in MEMORY}


def _options(run, mesh):
    """Return the options of the compiler: those of the recipe too, and for a pipeline on GPUs more memory.

    Its schedule never holds so much at once.
    """
    from outlay.program.compiler_options import CompilerOptions, compiler_options
    from outlay.program.scheduler_memory import SCHEDULER_MEMORY

    preset = compiler_options("preset", mesh)
    if run.layout.stages == 1 or run.target.startswith("tpu"):
        return dataclasses.replace(preset, values={**preset.values, **run.flags})
    return CompilerOptions("given", {**preset.values, SCHEDULER_MEMORY: 5 * preset.values[SCHEDULER_MEMORY]})


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
    from outlay.examples.moe import kernels_in_fp8
    from outlay.recipes.lm_precision import LAYERS, in_precision

    rules = _where_arrays_live(run)
    if run.precision is None:
        return rules
    kernels = kernels_in_fp8(config_of(run.row)) if run.recipe == "moe" else LAYERS
    return in_precision({run.layout.name: rules}, run.precision, kernels)[run.layout.name]


def _where_arrays_live(run):
    """Return rules that place arrays: those of the recipe where it has them, and others made of the same parts."""
    from jax.sharding import PartitionSpec as P

    from outlay.layout.layout import Layout
    from outlay.layout.strategies import data_parallel, fsdp, zero1, zero2
    from outlay.recipes.lm import inside, megatron

    layout = run.layout
    rules = _over_stages(run) + _over_contexts(run)
    if "expert" in layout.mesh:
        rules += _over_experts(run)
    elif "model" in layout.mesh:
        rules += megatron(config_of(run.row)) + inside("table", P("model")) + inside("head", P(None, "model"))
    if layout.params:
        rules += _kernels(fsdp, layout.params, "params")
    if layout.gradients:
        rules += zero2(layout.optimizer)
    elif "expert" in layout.mesh and layout.mesh["data"] == 1:
        for name in ("attention.**.kernel", "embedding", "head.kernel"):
            rules += zero1("expert", pattern=f"opt_state.**.{name}", min_size=1)
    elif layout.optimizer and (layout.stages > 1 or "expert" in layout.mesh):
        rules += _kernels(zero1, layout.optimizer, "opt_state")
    elif layout.optimizer:
        rules += _kernels(zero1, layout.optimizer, "opt_state")
        whole = Layout([("grads.**", P())])
        rules += (megatron(config_of(run.row), "grads") if "model" in layout.mesh else Layout([])) + whole
    batch = layout.batch if len(layout.batch) > 1 else layout.batch[0]
    tokens = "context" if "context" in layout.mesh else None
    if run.target.startswith("tpu"):  # the compiler cannot split their attention kernel by itself
        rules += inside("queries", P(batch, None, "model" if "model" in layout.mesh else None))
    if layout.sequence:
        within = ("context", "model") if tokens else "model"
        rules += inside("residual", P(batch, within)) + inside("branch_input", P(batch, tokens))
        rules += inside("branch_output", P(batch, tokens))
    else:
        rules += inside("residual", P(batch, tokens))
    if len(layout.batch) == 1 and not tokens:
        return rules + data_parallel()
    return rules + Layout([("batch.**", P(batch, tokens))]) + Layout([*data_parallel().rules[1:]])


def _over_stages(run):
    """Return the rule of the run's pipeline."""
    from outlay.layout.layout import Layout
    from outlay.layout.pipelines import pipeline
    from outlay.layout.placement import replicate
    from outlay.layout.rule import Rule

    if run.layout.stages == 1:
        return Layout([])
    staged = pipeline("stage", microbatches=run.layout.microbatches, repeats=run.layout.repeats)
    # The frameworks have embedding and head whole, at the first and the last stage; tensor parallelism splits them.
    whole = ("positions",) if "model" in run.layout.mesh else OUTSIDE
    outside = [Rule(f"params.{name}.**", replicate(), optional=True) for name in whole]
    return Layout([*outside, ("params.layers.**", staged)])


def _over_experts(run):
    """Return the rules of a run's experts, and of its tensor parallelism."""
    from outlay.examples.moe import EXPERTS, tensor_parallel
    from outlay.layout.expert_rules import expert_parallel
    from outlay.layout.layout import Layout
    from outlay.layout.placement import replicate
    from outlay.layout.rule import Rule

    tensor = tensor_parallel(config_of(run.row)) if "model" in run.layout.mesh else Layout([])
    # All else is whole, as the frameworks have it.
    others = [Rule(f"params.{name}.**", replicate(), optional=True) for name in (*OUTSIDE, "layers.attention")]
    return tensor + expert_parallel("expert", pattern=EXPERTS, dim=1) + Layout([] if tensor.rules else others)


def _over_contexts(run):
    """Return the rule of attention whose tokens are split.

    In the frameworks keys and values go round, with a fused kernel. Here a ring has none, and tokens for heads has.
    """
    from outlay.layout.contexts import context
    from outlay.layout.layout import Layout

    return Layout([("@attention", context("context", "all_to_all"))] if "context" in run.layout.mesh else [])


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
    how += ["experts"] if run.recipe == "moe" else []
    how += [str(run.flags)] if run.flags else []
    how += ["tokens for heads"] if "context" in run.layout.mesh else []
    how += [f"{run.layout.microbatches} x {run.layout.repeats}"] if run.layout.stages > 1 else []
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


def last_words(run: Run, cache: Path):
    """Return the last line that a run's compilation wrote, of a pipeline that of the program without an answer."""
    silent = [one for one in run.programs if not (cache / f"{_name(one)}.compiled.gz").is_file()]
    log = cache / f"{_name(silent[0])}.log" if silent else None
    lines = log.read_text(errors="replace").strip().splitlines() if log and log.is_file() else []
    return lines[-1][:300] if lines else "ended without a word"


def main():
    """Compile a program of one row in this process: `_published_facts.py FILE ID ASKED CACHE`."""
    from outlay.core.error_types import CompilerAbortError, OutlayError

    source, name, asked, cache = sys.argv[1:]
    ways = runs_of(next(row for row in read_rows(source) if row["id"] == name))
    run = next(program for way in ways for program in way.programs if _asked(program) == asked)
    try:
        compiled = compiled_of(run)
    except (OutlayError, ValueError, RuntimeError) as error:
        if isinstance(error, CompilerAbortError) and error.is_from_outside:
            sys.exit(" ".join(str(error).split()))
        compiled = {"error": str(error)[:2000]}
    _write(Path(cache) / f"{_name(run)}.compiled.gz", compiled)
    _cached_program(run, Path(cache))


if __name__ == "__main__":
    main()
