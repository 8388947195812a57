"""Pipelines by arithmetic, which orders a search, and compiled: memory and seconds of each, and how the orders agree.

The bars: Spearman's rank correlation of at least 0.8 for memory and for seconds, and memory within 15 %. Each program
is compiled for GPUs that are not here: minutes.

    python benchmarks/screening.py [--target h100:1x8]
"""

import argparse
import datetime

from rank import spearman

BAR, NEAR = 0.8, 0.15
WORDS = (
    "--layers 8 --width 1024 --heads 8 --hidden 4096 --vocabulary 4096 --sequence 2048 --batch 64 --accumulate 1 "
    "--dtype bfloat16"
)
PROGRAMS = (
    ("pp:microbatches=8", "stage=4,data=2", "full"),
    ("pp:microbatches=16", "stage=4,data=2", "none"),
    ("pp:microbatches=8", "stage=8,data=1", "full"),
    ("pp:microbatches=8,repeats=2", "stage=4,data=2", "full"),
    ("pp+tp:microbatches=8", "stage=2,data=2,model=2", "none"),
    ("pp+fsdp+tp:microbatches=8", "stage=2,data=2,model=2", "full"),
    ("pp+fsdp+tp:microbatches=4", "stage=4,data=1,model=2", "products"),
)


def main():
    from outlay.devices.target import Target

    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="h100:1x8")
    parser.add_argument("--words", default=WORDS)
    asked = parser.parse_args()
    target, words, gib = Target.parse(asked.target), asked.words.split(), 2**30
    print(f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}: lm {asked.words}, {asked.target}\n")
    print("| layout | mesh | remat | expected | compiled | expected | compiled |")
    print("|---|---|---|---|---|---|---|")
    rows = []
    for layout, mesh, remat in PROGRAMS:
        expected, price = both(target, [*words, "--remat", remat], layout, mesh)
        rows.append((expected.num_bytes, price["peak_bytes"], expected.seconds, price["seconds"]))
        memory = f"{expected.num_bytes / gib:.2f} GiB | {price['peak_bytes'] / gib:.2f} GiB"
        print(f"| `{layout}` | `{mesh}` | {remat} | {memory} | {expected.seconds:.3f} s | {price['seconds']:.3f} s |")
    away = max(abs(expected / needed - 1) for expected, needed, _, _ in rows)
    print(f"\nmemory: {away:.0%} away at most ({'within' if away <= NEAR else 'BEYOND'} the bar of {NEAR:.0%})")
    for what, one, other in (("memory", 0, 1), ("seconds", 2, 3)):
        order = spearman([row[one] for row in rows], [row[other] for row in rows])
        print(f"{what}: Spearman {order:.2f} ({'within' if order >= BAR else 'BELOW'} the bar of {BAR})")


def both(target, words, layout, mesh):
    """Return what arithmetic expects of a program, and its price once it is compiled."""
    from outlay.devices.mesh_spec import MeshSpec
    from outlay.recipes.choose import Job, answer, ask
    from outlay.search.analytic_cost import expect
    from outlay.search.screening import plan_of

    question = ask("lm", words, target, layouts=[layout], meshes=[mesh])
    (candidate,) = question.candidates
    work, chosen = question.workload_of(candidate), question.layouts[candidate.layout]
    expected = expect(work, plan_of(work, chosen, MeshSpec.parse(mesh), target), target, chosen)
    price = answer(Job("lm", words, candidate.layout, candidate.mesh, None, str(target)))
    if "error" in price:
        raise SystemExit(price["message"])
    return expected, price["price"]


if __name__ == "__main__":
    main()
