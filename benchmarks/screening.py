"""Programs by arithmetic, which orders a search, and compiled: memory and seconds of each, and how the orders agree.

The bars: Spearman's rank correlation of at least 0.8 for memory and for seconds. Three models on three meshes of GPUs
that are not here, with each kind of layout and of recomputation: eight minutes on two cores, all compiled anew.

    python benchmarks/screening.py [--only h100:1x8]
"""

import argparse
import datetime
import statistics

from rank import spearman

BAR = 0.8
SMALL = "--layers 8 --width 1024 --heads 8 --hidden 4096 --vocabulary 4096 --sequence 2048 --batch 64 --dtype bfloat16"
GROUPED = (
    "--layers 12 --width 2048 --heads 16 --kv-heads 4 --hidden 5632 --vocabulary 32000 --sequence 4096 --batch 32 "
    "--dtype bfloat16"
)
GPT = (
    "--model mpt-125m --layers 16 --width 768 --heads 12 --hidden 3072 --vocabulary 50304 --sequence 1024 --batch 128 "
    "--dtype bfloat16"
)
PROGRAMS = {
    ("h100:1x8", SMALL): (
        ("pp:microbatches=8", "stage=4,data=2", "--remat full"),
        ("pp:microbatches=16", "stage=4,data=2", "--remat none"),
        ("pp:microbatches=8", "stage=8,data=1", "--remat full"),
        ("pp:microbatches=8,repeats=2", "stage=4,data=2", "--remat full"),
        ("pp+tp:microbatches=8", "stage=2,data=2,model=2", "--remat none"),
        ("pp+fsdp+tp:microbatches=8", "stage=2,data=2,model=2", "--remat full"),
        ("pp+fsdp+tp:microbatches=4", "stage=4,data=1,model=2", "--remat products"),
        ("fsdp", "data=8", "--remat none"),
        ("fsdp", "data=8", "--remat full"),
        ("fsdp", "data=8", "--remat products"),
        ("fsdp+tp", "data=4,model=2", "--remat full"),
        ("fsdp+tp+sp", "data=4,model=2", "--remat none"),
        ("tp", "data=2,model=4", "--remat attention"),
        ("dp", "data=8", "--remat none --accumulate 4"),
        ("cp:exchange=gather", "data=4,context=2", "--remat full"),
        ("fsdp+cp:exchange=ring", "data=2,context=4", "--remat none"),
        ("pp+fsdp+cp:microbatches=8,exchange=all_to_all", "stage=2,data=2,context=2", "--remat full"),
        ("pp+cp:microbatches=8,exchange=ring", "stage=2,data=2,context=2", "--remat full"),
    ),
    ("a100-80gb:2x8", GROUPED): (
        ("fsdp", "data=16", "--remat full"),
        ("hsdp", "data=2,fsdp=8", "--remat full"),
        ("pp+fsdp+tp:microbatches=8", "stage=2,data=4,model=2", "--remat full"),
        ("fsdp+tp", "data=8,model=2", "--remat products"),
        ("pp+tp:microbatches=8", "stage=2@hosts,data=2,model=4", "--remat full"),
        ("fsdp+cp:exchange=all_to_all", "data=8,context=2", "--remat full"),
        (
            "pp+fsdp+tp+cp:microbatches=8,exchange=all_to_all",
            "stage=2@hosts,data=2,context=2,model=2",
            "--remat full",
        ),
    ),
    ("h100:1x8", GPT): (
        ("dp", "data=8", "--remat none"),
        ("pp+fsdp+tp:microbatches=8", "stage=4,data=1,model=2", "--remat full"),
        ("fsdp", "data=8", "--remat full --loss-chunks 4"),
        ("pp+tp:microbatches=8", "stage=2,data=2,model=2", "--remat products"),
        ("tp", "data=4,model=2", "--remat full"),
    ),
}


def main():
    from outlay.devices.target import Target

    parser = argparse.ArgumentParser()
    parser.add_argument("--only", metavar="TARGET", help="the programs for this target")
    asked = parser.parse_args()
    rows, gib = [], 2**30
    for (target, words), programs in PROGRAMS.items():
        if asked.only not in (None, target):
            continue
        print(f"\n{datetime.datetime.now(datetime.UTC):%Y-%m-%d}: lm {words}, {target}\n")
        print("| layout | mesh | options | expected | compiled | | expected | compiled | |")
        print("|---|---|---|---|---|---|---|---|---|")
        for layout, mesh, options in programs:
            expected, price = both(Target.parse(target), [*words.split(), *options.split()], layout, mesh)
            row = (expected.num_bytes, price["peak_bytes"], expected.seconds, price["seconds"])
            rows.append(row)
            memory = f"{row[0] / gib:.2f} GiB | {row[1] / gib:.2f} GiB | x{row[0] / row[1]:.2f}"
            seconds = f"{row[2]:.3f} s | {row[3]:.3f} s | x{row[2] / row[3]:.2f}"
            print(f"| `{layout}` | `{mesh}` | `{options}` | {memory} | {seconds} |", flush=True)
    print(f"\n{len(rows)} programs")
    for what, one, other in (("memory", 0, 1), ("seconds", 2, 3)):
        order = spearman([row[one] for row in rows], [row[other] for row in rows])
        away = [abs(row[one] / row[other] - 1) for row in rows]
        print(
            f"{what}: Spearman {order:.2f} ({'within' if order >= BAR else 'BELOW'} the bar of {BAR}); "
            f"{statistics.median(away):.0%} away in the middle, {max(away):.0%} at most"
        )


def both(target, words, layout, mesh):
    """Return what arithmetic expects of a program, and its price once it is compiled."""
    from outlay.devices.mesh_spec import MeshSpec
    from outlay.recipes.choose import Job, answer, ask
    from outlay.search.analytic_cost import expect
    from outlay.search.screening import plan_of

    if "--accumulate" not in words:  # a search would try several
        words = [*words, "--accumulate", "1"]
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
