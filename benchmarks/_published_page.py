"""The page *Predicted against measured*, with its plot, from what was priced."""

import math
import statistics
from collections import defaultdict

from _published_experts import section
from _published_figures import APART, BARS, figures, memory_figures, pairs_in_order, plot, spearman_in_groups
from _published_fit import left_out
from _published_links import links
from _published_rows import RUNS, obstacles, read_rows, run_of

NAME = "predicted_against_measured"
LAYOUTS = ("dp", "fsdp", "hsdp", "tp", "fsdp+tp", "fsdp+tp+sp")
"""Layouts that `lm` has by name; the others are made of the same rules by the script."""

INTRO = """\
# Predicted against measured

Can the time of a step be known before anybody has the hardware? This page compares what Outlay says with what others
measured and published: {num} training runs on {hardware}, on {least} to {most} devices. Each was built as its source
describes it, compiled by the real compiler for hardware that was not there, and priced; nothing was run. No constant
belongs to a row: there are a few for each kind of device
([decision 31](../decisions/0031-prices-by-published-runs.md)), and one for each kernel of attention that runs had then
([decision 72](../decisions/0072-a-run-has-the-attention-kernel-of-its-time.md)).

The rows with their sources are `benchmarks/data/published_runs.csv`. `python benchmarks/published.py --known` prints
this table in seconds and needs no compiler; `--row ID` compiles a row again, and `--runs FILE` tries a file of yours.

{missing}![Predicted over published time of a step](../_static/{name}.svg)

"""

MISSING = """\
Of the rows of quality A and B, {expressed} can be expressed. Those here were compiled first: for variety, and then
group by group of what a source compares; never by result, and none that was compiled is left out. The others are still
to be compiled; `python benchmarks/published.py --keep --page docs` does that and writes this page anew.

"""

HEAD = "rows | median off by | within 1.35 | inside the range |\n|---|---|---|---|---|\n"


def write_page(results, refused, failed, docs):
    """Write the page and its plot.

    Args:
        results: the priced rows.
        refused: why other rows cannot be expressed, by name.
        failed: why the compiler gave up on a row, by name.
        docs: the folder of docs.
    """
    timed = [one for one in results if one.run.is_timed]
    plot(timed, docs / "_static" / f"{NAME}.svg")
    sizes = [int(one.run.row["num_devices"]) for one in timed]
    hardware = sorted({one.run.target.split(":")[0] for one in timed})
    expressed = sum(row["quality"] in "AB" and row["id"] not in refused for row in read_rows(RUNS))
    missing = MISSING.format(expressed=expressed) if len(timed) < expressed else ""
    intro = INTRO.format(
        missing=missing, num=len(timed), least=min(sizes), most=max(sizes), hardware=", ".join(hardware), name=NAME
    )
    parts = [
        intro,
        *_figures(timed),
        *_memory(results, failed),
        *_rows(timed),
        *_failed(failed),
        *section(read_rows(RUNS), timed),
        *_links(),
        *_refused(refused),
        *_commands(timed),
    ]
    (docs / "concepts" / f"{NAME}.md").write_text("".join(parts), encoding="utf-8")


def _by_source(results):
    sources = defaultdict(list)
    for one in results:
        sources[one.run.source].append(one)
    return sources


def _line(name, its):
    shares = (math.exp(its["median"]) - 1, its["near"], its["inside"])
    return f"| {name} | {its['rows']} | {' | '.join(map(_percent, shares))} |\n"


def _figures(results):
    yield f"## How well\n\n| | {HEAD}"
    yield from (_line(name, figures(some)) for name, some in {"all": results, **_by_source(results)}.items())
    each, mean = spearman_in_groups(results)
    in_order, apart = pairs_in_order(results)
    width, widest = statistics.median(one.high / one.low for one in results), figures(results)["width"]
    yield f"\nA range is {width:.2f} wide, from low to high, the widest {widest:.2f}. "
    yield f"Spearman's rank correlation is {mean:.2f} on average over "
    yield f"the {len(each)} groups of three runs or more\nthat a source compares with one another. Of the {apart} "
    yield f"pairs in a group whose times are more than {_percent(APART - 1)} apart, {in_order} are predicted in\nthe "
    yield "right order.\n\nConstants might suit only the rows that they were fitted to. So each "
    yield "source was left out once, the shares of products and the\nwaiting for the slowest host were fitted to the "
    yield "rest, and the source was predicted. The share of fused attention stayed: that\nof today's kernels has its "
    yield "source. MosaicML's runs are priced with the kernel that they had, of 2023, whose share is by their long\n"
    yield "sequences, which are therefore no test of it.\n\n"
    yield f"| left out | {HEAD}"
    yield from (_line(name, its) for name, its in left_out(results).items())
    yield f"\nThe bars are a median of {_percent(math.exp(BARS['median']) - 1)}, {_percent(BARS['near'])} within 1.35, "
    yield f"{_percent(BARS['inside'])} inside, ranges at most {BARS['width']} wide.\n\n"


def _memory(results, failed):
    num, near, refused = memory_figures(results)
    by_compiler = [name for name, reason in failed.items() if reason.startswith("RESOURCE_EXHAUSTED")]
    yield f"## Memory\n\n{near} of {num} published peaks are within 15 %. Said not to fit, though all "
    yield f"{len(results) + len(by_compiler)} ran: {_names(one.run.id for one in refused)} by the peak,\n"
    yield f"and {_names(by_compiler)} by the compiler for TPUs, which refuses them.\n\n"
    yield "A peak is the compiler's. A framework that keeps, by its own source, what a program of Outlay does not, "
    yield "gets that too\n([decision 78](../decisions/0078-memory-of-a-published-run.md)): nanotron keeps the output "
    yield "of every activation, whole float32\ngradients, and logits and their softmax in float32. Rows whose time "
    yield "cannot be used, for a reason that the file gives, count here only.\n"
    yield "Of the 530B's peak, 9 GiB are gradients of one layer, which XLA keeps until the layer's end.\n"
    yield "Of a pipeline, the peak is that of the first stage under 1F1B, interleaved where it has several parts.\n\n"
    yield from _less_assumed(results)
    yield "| run | layout | published, GiB | predicted, GiB | ratio |\n|---|---|---|---|---|\n"
    for one in sorted((one for one in results if one.run.memory), key=lambda one: one.run.id):
        yield f"| `{one.run.id}` | {one.run.layout.name} | {one.run.memory / 2**30:.1f} | {one.peak / 2**30:.1f} | "
        yield f"{one.peak / one.run.memory:.2f} |\n"
    yield "\n"


def _less_assumed(results):
    """Yield the runs that are built with less than is assumed first, since a device did not hold that."""
    less = [one.run for one in results if one.run != run_of(one.run.row)]
    if less:
        yield "Where a source does not say how much is recomputed, or how large a microbatch is, nothing and four "
        yield "sequences\nare assumed; if a device does not hold that, less: "
        yield ", ".join(f"`{run.id}` ({', '.join(run.assumed[-1:])})" for run in less) + ".\n\n"


def _names(ids):
    return ", ".join(f"`{name}`" for name in ids) or "none"


def _rows(results):
    yield "## The runs\n\nTimes are seconds a step. A pipeline is priced by two programs, with as many microbatches as "
    yield "stages and with twice as many;\ntime and memory are linear in their number "
    yield "([decision 246](../decisions/0246-published-pipelines.md)).\n\n"
    for name, some in _by_source(results).items():
        yield f"### {name}\n\n| run | layout | target | published | predicted | range | | memory, GiB |\n"
        yield "|---|---|---|---|---|---|---|---|\n"
        for one in sorted(some, key=lambda one: one.run.id):
            run = one.run
            off = "" if one.is_inside else "*too slow*" if one.ratio > 1 else "*too fast*"
            most = "at most " if one.is_most else ""
            memory = f"{most}{one.peak / 2**30:.1f}" + (f" (published {run.memory / 2**30:.1f})" if run.memory else "")
            memory += "" if one.fits else ", *does not fit*"
            yield f"| `{run.id}` | {run.layout.name} | {run.target} | {run.seconds:.4g} | {one.seconds:.4g} | "
            yield f"{one.low:.3g} to {one.high:.3g} | {off} | {memory} |\n"
        yield "\n"


def _failed(failed):
    if failed:
        yield "### Compiled, and not priced\n\nThese ran for those who published them, and are in no figure above.\n\n"
        yield "| run | why |\n|---|---|\n"
        yield from (f"| `{name}` | {reason.splitlines()[0]} |\n" for name, reason in failed.items())
        yield "\n"


def _links():
    measurements = links()
    share = sum(one.is_inside for one in measurements) / len(measurements)
    yield f"## Links, products and copies\n\n{_percent(share)} of {len(measurements)} published measurements lie in "
    yield "the range (`python benchmarks/published.py --links`). Outside:\n\n"
    yield "| what | published | range | |\n|---|---|---|---|\n"
    for one in measurements:
        if not one.is_inside:
            yield f"| `{one.id}` | {one.published:.4g} | {one.low:.3g} to {one.high:.3g} | {one.unit} |\n"
    yield "\n"


def _refused(refused):
    yield f"## Not priced\n\n{len(refused)} rows of the file say what `lm` and its layouts cannot express. *Alone*: of "
    yield "so many rows it is all that stands in the way.\n\n| what | rows | alone | such as |\n|---|---|---|---|\n"
    for kind, names, alone in obstacles(refused):
        yield f"| {kind} | {len(names)} | {len(alone)} | `{(alone or names)[0]}` |\n"
    yield "\n"


def _commands(results):
    yield "## Each row's command\n\nWhere `lm` has the layout by name, `outlay explain` shows the whole page of a row; "
    yield "the others take `python benchmarks/published.py --row`.\nOf MosaicML's and nanotron's runs it expects less "
    yield "time than stands above, with today's kernels of attention.\n\n```text\n"
    for one in results:
        run = one.run
        if run.layout.name in LAYOUTS:
            where = f"--layout {run.layout.name} --mesh {run.layout.text} --target {run.target}"
            yield f"# {run.id}\noutlay explain lm {' '.join(run.words)} {where}\n"
    yield "```\n"


def _percent(share):
    return f"{100 * share:.0f} %"
