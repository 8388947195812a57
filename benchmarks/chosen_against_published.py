"""Published ways to lay out large models, on the target of a search, with the best way that arithmetic finds there.

The bar: none of them is faster by price than the best found. Each row is a distinct way of the published runs of a
model: tensor, pipeline and context parallel, with the numbers of its source and all other devices for data. What
Outlay cannot express is named with its reason. Prices are those of arithmetic, which orders a search: minutes of a
processor. With `--compile` the best found and all that can be expressed are compiled for the target: minutes each.

    python benchmarks/chosen_against_published.py [--only gpt3-175b] [--compile]
"""

import argparse
import csv
import datetime
from collections import Counter

from _published_rows import RUNS

BARS = {
    "llama3-405b": ("h100:64x8", ("llama3.1-405b",), ("--sequence", "8192")),
    "gpt3-175b": ("a100-80gb:128x8", ("gpt3-175b", "gpt-175b"), ()),
}
"""The target of each model, its names in published runs, and what is asked besides."""


def main():
    from outlay.devices.target import Target

    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=BARS)
    parser.add_argument("--compile", action="store_true")
    asked = parser.parse_args()
    for model, (target, names, more) in BARS.items():
        if asked.only in (None, model):
            compare(model, Target.parse(target), names, more, compiles=asked.compile)


def compare(model, target, names, more, *, compiles):
    from outlay.recipes.choose import ask
    from outlay.search.screening import screen

    words, memory = ("--model", model, *more), target.hardware.memory_bytes
    question = ask("lm", words, target)
    passed, _ = screen(question.candidates, question.layouts, question.workload_of, target)
    best = next(each for each in passed if each.expected.num_bytes <= memory)
    seconds, per = ("compiled" if compiles else "expected"), best.expected.seconds_per_sample
    print(f"\n{datetime.datetime.now(datetime.UTC):%Y-%m-%d}: lm {' '.join(words)}, {target}")
    print(f"{len(question.candidates)} ways, {len(passed)} can run\n")
    print(f"| runs | tensor, pipeline, repeats, context | here | {seconds} | memory | times the best |")
    print("|---|---|---|---|---|---|")
    faster = 0
    at_best = priced(words, target, best.candidate) if compiles else (best.expected.seconds, best.expected.num_bytes)
    print(line("", "the best found", str(best.candidate), *at_best, 1.0))
    for (tp, pp, vp, cp), count in sorted(ways(names).items()):
        what = f"{tp}, {pp}, {vp}, {cp}"
        layout, mesh = expressed(target, tp, pp, vp, cp)
        alike = [one for one in passed if (one.candidate.layout, one.candidate.mesh) == (layout, mesh)]
        if layout is None or not alike:
            print(f"| {count} | {what} | {mesh if layout is None else why(question, target, layout, mesh)} | | | |")
            continue
        fitting = [one for one in alike if one.expected.num_bytes <= memory] or alike
        one = min(fitting, key=lambda each: each.expected.seconds_per_sample)
        price = (one.expected.seconds, one.expected.num_bytes)
        if compiles:
            price = priced(words, target, one.candidate)
        ratio = price[0] / at_best[0] if compiles else one.expected.seconds_per_sample / per
        faster += ratio < 1 and price[1] <= memory
        print(line(count, what, str(one.candidate), *price, ratio))
    print(f"\n{faster} faster than the best found ({'within' if not faster else 'BEYOND'} the bar of 0)")


def line(count, what, way, seconds, num_bytes, ratio):
    return f"| {count} | {what} | `{way}` | {seconds:.2f} s | {num_bytes / 2**30:.1f} GiB | {ratio:.2f} |"


def ways(names):
    """Count the published runs of a model by how they are laid out."""
    with RUNS.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["model"].lower() in names]
    return Counter(tuple(int(row[name] or 1) for name in ("tp", "pp", "vp", "cp")) for row in rows)


def expressed(target, tp, pp, vp, cp):
    """Return the layout and the mesh of a published way on a target; None and why, if there is none."""
    from outlay.core.error_types import MeshError
    from outlay.devices.mesh_spec import MeshSpec
    from outlay.search.candidate import on_target

    if pp > 1 and cp > 1:
        return None, "a pipeline and a context in one program: there is none (decision 190)"
    rest = target.num_devices // (tp * pp * cp)
    if cp > 1:
        layout, mesh = "fsdp+cp:exchange=all_to_all", f"data={rest * tp},context={cp}"
    elif pp > 1:
        layout, mesh = "pp+fsdp+tp" if tp > 1 else "pp", f"stage={pp}@hosts,data={rest}"
        layout += f":microbatches={8 * pp}" + (f",repeats={vp}" if vp > 1 else "")
        mesh += f",model={tp}" if tp > 1 else ""
    else:
        layout, mesh = ("fsdp+tp", f"data={rest},model={tp}") if tp > 1 else ("fsdp", f"data={rest}")
    try:
        return layout, str(on_target(MeshSpec.parse(mesh), target))
    except MeshError as error:
        return None, str(error).partition("\n")[0]


def why(question, target, layout, mesh):
    """Say why a layout is not among what can run."""
    from outlay.recipes.choose import ask
    from outlay.search.screening import screen

    asked = ask("lm", question.words, target, layouts=[layout], meshes=[mesh])
    passed, ruled_out = screen(asked.candidates, asked.layouts, asked.workload_of, target)
    reasons = Counter(each.why for each in ruled_out).most_common(1)
    return reasons[0][0] if reasons and not passed else f"`{layout} {mesh}` is not searched"


def priced(words, target, candidate):
    """Return the seconds and the bytes of a candidate as compiled."""
    from outlay.recipes.choose import Job, answer

    job = Job("lm", (*words, *candidate.words), candidate.layout, candidate.mesh, None, str(target))
    price = answer(job)
    if "error" in price:
        raise SystemExit(price["message"])
    return price["price"]["seconds"], price["price"]["peak_bytes"]


if __name__ == "__main__":
    main()
