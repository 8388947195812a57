"""Experts' choices: is what was fastest predicted first, and does `choose` try the fastest configurations of a size?"""

import re
from collections import defaultdict
from dataclasses import dataclass

from _published_rows import CannotExpressError, run_of

from outlay.recipes.find import LAYOUTS

TIE = 1.05
SIZES = {"7B": (6, 9), "70B": (60, 80), "405B": (380, 420)}
"""Billions of parameters of the models whose best configurations are looked for, on 8 to 512 GPUs."""

_LAYOUT = ("tp", "pp", "cp", "ep", "zero_stage", "fsdp", "sp", "remat", "microbatch_seqs", "grad_accum")


@dataclass(frozen=True)
class Choice:
    """Runs of one model on as many devices that differ in layout, microbatch or recomputation.

    Attributes:
        name: model, sequence, hardware, devices and precision.
        best: the row that was fastest, by time a sequence.
        num_runs: how many runs there are.
        agrees: whether the best is predicted first, or within 5 % of the first; None where that cannot be asked.
        why: why it cannot.
    """

    name: str
    best: dict[str, str]
    num_runs: int
    agrees: bool | None
    why: str = ""


@dataclass(frozen=True)
class Best:
    """The fastest published run of models of a size on some GPUs.

    Attributes:
        size: such as `7B`.
        row: the run.
        layout: the layout, where it can be expressed; empty where not.
        is_tried: whether `choose` has that layout for `lm`.
        why: what it takes that cannot be expressed.
    """

    size: str
    row: dict[str, str]
    layout: str
    is_tried: bool
    why: str = ""


def choices(rows, priced):
    """Yield the groups of rows of quality A and B that differ in layout only, each with its verdict.

    Args:
        rows: the rows of a file of runs.
        priced: those of them that were priced.
    """
    by_id = {one.run.id: one for one in priced}
    groups = defaultdict(list)
    for row in rows:
        if row["quality"] in "AB" and _seconds(row) and row["global_batch_seqs"]:
            precision = row["precision"].lower()
            groups[row["model"], row["seq_len"], row["hardware"], row["num_devices"], precision].append(row)
    for key, members in sorted(groups.items()):
        if len({tuple(row[name] for name in _LAYOUT) for row in members}) > 1:
            yield _choice(" ".join(key), sorted(members, key=_each), by_id)


def _choice(name, members, by_id):
    best, num = members[0], len(members)
    reasons = {row["id"]: _reason(row) for row in members}
    if reasons[best["id"]]:
        return Choice(name, best, num, None, f"the best has {reasons[best['id']]}")
    if best["id"] not in by_id:
        return Choice(name, best, num, None, "the best is not compiled")
    rest = [row for row in members if row["id"] in by_id]
    if len(rest) < 2:
        others = "; ".join(
            sorted({why or "a program that is not compiled" for why in map(reasons.get, reasons) if why})
        )
        return Choice(name, best, num, None, f"the others have {others or 'no compiled program'}")
    predicted = {row["id"]: by_id[row["id"]].seconds / float(row["global_batch_seqs"]) for row in rest}
    return Choice(name, best, num, predicted[best["id"]] <= TIE * min(predicted.values()))


def best_configurations(rows):
    """Yield the fastest published run of each size on each kind and number of GPUs, from 8 to 512."""
    groups = defaultdict(list)
    for row in rows:
        size = _size(row)
        if size and 8 <= int(row["num_devices"]) <= 512 and _seconds(row) and "TPU" not in row["hardware"]:
            groups[size, re.sub(r".*\((.*)\)", r"\1", row["hardware"]), int(row["num_devices"])].append(row)
    order = list(SIZES)
    for (size, *_), members in sorted(groups.items(), key=lambda one: (order.index(one[0][0]), one[0][2], one[0][1])):
        best = min(members, key=_each)
        try:
            layout = run_of(best).layout.name
        except CannotExpressError as error:
            yield Best(size, best, "", is_tried=False, why=str(error))
        else:
            yield Best(size, best, layout, is_tried=layout in LAYOUTS["lm"])


def lines(rows, priced):
    """Yield the lines to print about both."""
    for one in choices(rows, priced):
        verdict = {True: "predicted first or near", False: "NOT predicted first", None: f"not asked: {one.why}"}
        yield f"{one.name}: best of {one.num_runs} is {one.best['id']}, {verdict[one.agrees]}"
    for one in best_configurations(rows):
        how = f"{one.layout}, {'tried' if one.is_tried else 'NOT tried'} by choose" if one.layout else one.why
        yield f"best published of {one.size} on {one.row['num_devices']} {one.row['hardware']}: {one.row['id']}: {how}"


def section(rows, priced):
    """Yield the section of the page."""
    groups = list(choices(rows, priced))
    decided = [one for one in groups if one.agrees is not None]
    yield "## Experts' choices\n\nRuns of one model on as many devices that differ in layout, microbatch or "
    yield "recomputation: is the one that was fastest\npredicted first, or within 5 % of the first? That can be asked "
    yield f"of {len(decided)} of {len(groups)} groups, and in {sum(one.agrees for one in decided)} it is. "
    yield "In the others the\nfastest or all others take what Outlay's `lm` cannot express, or are not compiled.\n\n"
    yield "| runs | best published | predicted first or near |\n|---|---|---|\n"
    for one in groups:
        verdict = {True: "yes", False: "**no**", None: f"not asked: {one.why}"}[one.agrees]
        yield f"| {one.num_runs} of {one.name} | `{one.best['id']}` | {verdict} |\n"
    best = list(best_configurations(rows))
    expressed = [one for one in best if one.layout]
    yield "\n### Best configurations\n\nThe fastest published run of each size on each kind and number of GPUs, from 8 "
    yield f"to 512. Of {len(best)}, {len(expressed)} can be expressed;\n`outlay choose lm` tries the layout of "
    yield f"{sum(one.is_tried for one in expressed)} of them. The others multiply with scales "
    yield "of blocks, or in 4 bits.\n\n"
    yield "| size | GPUs | best published | layout | tried by `choose` |\n|---|---|---|---|---|\n"
    for one in best:
        tried = ("yes" if one.is_tried else "no, only as rules") if one.layout else f"no: {one.why}"
        gpus = f"{one.row['num_devices']} {one.row['hardware']}"
        yield f"| {one.size} | {gpus} | `{one.row['id']}` | {one.layout} | {tried} |\n"
    yield "\n"


def _reason(row):
    try:
        run_of(row)
    except CannotExpressError as error:
        return str(error)
    return ""


def _size(row):
    params = float(row["params_b"] or 0)
    return next((name for name, (least, most) in SIZES.items() if least <= params <= most), "")


def _seconds(row):
    return float(row["step_time_s"] or row["derived_step_time_s"] or 0)


def _each(row):
    """Return the seconds per token, of all devices."""
    return _seconds(row) / (float(row["global_batch_seqs"] or 1) * float(row["seq_len"] or 1))
