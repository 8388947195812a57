"""The page *Predicted against measured*, with its plot, from what was priced."""

import math
import statistics
from collections import defaultdict

from _published_figures import BARS, experts, figures, left_out, memory_figures, plot, spearman_in_groups
from _published_links import links

NAME = "predicted_against_measured"
LAYOUTS = ("dp", "fsdp", "tp", "fsdp+tp", "fsdp+tp+sp")
"""Layouts that `lm` has by name; the others are made of the same rules by the script."""

REASONS = {
    ("MosaicML llm-foundry", True): "PyTorch and Triton flash attention",
}

INTRO = """\
# Predicted against measured

Can the time of a step be known before anybody has the hardware? This page compares what Outlay says with what others measured and
published: {num} training runs on A100, H100 and TPUs, from 8 to {most} devices, each built as its source describes it, compiled by the
real compiler for hardware that was not there, and priced. Nothing of it was run, and no constant belongs to a row: there are a few
for each kind of device ([decision 31](../decisions/0031-prices-by-published-runs.md)). The rows, with their sources, are
`benchmarks/data/published_runs.csv`; `python benchmarks/published.py --known` prints this table in seconds and needs no compiler,
`python benchmarks/published.py --row ID` compiles a row again, and `--runs FILE` tries yours.

![Predicted over published time of a step](../_static/{name}.svg)

"""


def write_page(found, refused, docs):
    """Write the page and its plot.

    Args:
        found: the priced rows.
        refused: why other rows are not priced, by name.
        docs: the folder of docs.
    """
    image = docs / "_static" / f"{NAME}.svg"
    plot(found, image)
    most = max(int(one.run.row["num_devices"]) for one in found)
    parts = [INTRO.format(num=len(found), most=f"{most:,}", name=NAME), *_figures(found), *_rows(found)]
    parts += [*_experts(found), *_links(), *_refused(refused), *_commands(found)]
    (docs / "reference" / f"{NAME}.md").write_text("".join(parts), encoding="utf-8")


def _figures(found):
    yield "## How well\n\n| | rows | median off by | within 1.35 | inside the range |\n|---|---|---|---|---|\n"
    sources = defaultdict(list)
    for one in found:
        sources[one.run.source].append(one)
    for name, some in {"all": found, **sources}.items():
        its = figures(some)
        yield f"| {name} | {its['rows']} | {_percent(math.exp(its['median']) - 1)} | {_percent(its['near'])} | "
        yield f"{_percent(its['inside'])} |\n"
    each, mean = spearman_in_groups(found)
    num, near, refused = memory_figures(found)
    width = statistics.median(one.high / one.low for one in found)
    yield f"\nA range is {width:.2f} wide, from low to high. Ranks: Spearman's correlation is {mean:.2f} on average in {len(each)} groups "
    yield "of three runs or more that a source compares with one another. "
    yield f"Memory: {near} of {num} published peaks are within 15 %, and {len(refused)} of these runs, all of which ran, are said not to fit.\n\n"
    yield "Constants could be fitted to the rows they are judged by. So each source was left out once, the constants fitted to the others, "
    yield "and the source then predicted:\n\n| left out | rows | median off by | within 1.35 | inside the range |\n|---|---|---|---|---|\n"
    for name, its in left_out(found).items():
        yield f"| {name} | {its['rows']} | {_percent(math.exp(its['median']) - 1)} | {_percent(its['near'])} | {_percent(its['inside'])} |\n"
    yield f"\nThe bars: a median of {_percent(math.exp(BARS['median']) - 1)}, {_percent(BARS['near'])} within 1.35, "
    yield f"{_percent(BARS['inside'])} inside ranges at most {BARS['width']} wide.\n\n"


def _rows(found):
    yield "## The runs\n\nSeconds a step. *Off* says in words what lies outside of the range.\n\n"
    sources = defaultdict(list)
    for one in found:
        sources[one.run.source].append(one)
    for name, some in sources.items():
        yield f"### {name}\n\n| run | layout | target | published | predicted | range | | memory, GiB |\n|---|---|---|---|---|---|---|---|\n"
        for one in sorted(some, key=lambda one: one.run.id):
            run = one.run
            off = "" if one.is_inside else "*too slow*" if one.ratio > 1 else "*too fast*"
            memory = f"{one.peak / 2**30:.1f}" + (f" (published {run.memory / 2**30:.1f})" if run.memory else "")
            memory += "" if one.fits else ", *does not fit*"
            yield f"| `{run.id}` | {run.layout.name} | {run.target} | {run.seconds:.4g} | {one.seconds:.4g} | "
            yield f"{one.low:.3g} to {one.high:.3g} | {off} | {memory} |\n"
        yield "\n"
        far = sorted((one for one in some if not one.is_inside), key=lambda one: -abs(math.log(one.ratio)))
        if far:
            yield f"{len(far)} outside, the farthest by {math.exp(abs(math.log(far[0].ratio))):.2f}.\n\n"


def _experts(found):
    yield "## Experts' choices\n\nRuns of one model on as many devices that differ in layout, microbatch or recomputation: is the best "
    yield "published one predicted first, or within 5 % of the first?\n\n"
    yield "| runs | best published | predicted first or near |\n|---|---|---|\n"
    agreed = list(experts(found))
    for name, members, agrees in agreed:
        yield f"| {len(members)} of {name} | `{members[0].run.id}` | {'yes' if agrees else 'no'} |\n"
    yield f"\n{sum(agrees for *_, agrees in agreed)} of {len(agreed)}.\n\n"


def _links():
    found = links()
    share = sum(one.is_inside for one in found) / len(found)
    yield f"## Links, products and copies\n\n{_percent(share)} of {len(found)} published measurements lie in the range "
    yield "(`python benchmarks/published.py --links`). Outside:\n\n| what | published | range | |\n|---|---|---|---|\n"
    for one in found:
        if not one.is_inside:
            yield f"| `{one.id}` | {one.published:.4g} | {one.low:.3g} to {one.high:.3g} | {one.unit} |\n"
    yield "\n"


def _refused(refused):
    reasons = defaultdict(list)
    for name, reason in refused.items():
        reasons[reason].append(name)
    yield f"## Not priced\n\n{len(refused)} rows of the file are nothing that `lm` and its layouts can express.\n\n| rows | why | such as |\n|---|---|---|\n"
    for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        yield f"| {len(names)} | {reason} | `{names[0]}` |\n"
    yield "\n"


def _commands(found):
    yield "## Each row's command\n\n`outlay explain` shows the whole page of a row whose layout `lm` has by name:\n\n```text\n"
    for one in found:
        run = one.run
        if run.layout.name in LAYOUTS:
            mesh = ",".join(f"{axis}={size}" for axis, size in run.layout.mesh.items())
            yield f"# {run.id}\noutlay explain lm {' '.join(run.words)} --layout {run.layout.name} --mesh {mesh} --target {run.target}\n"
    yield "```\n"


def _percent(share):
    return f"{100 * share:.0f} %"
