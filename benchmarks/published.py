"""Predicted against measured: published training runs and collectives, priced for the hardware they ran on.

Each run is built as its source describes it, compiled for its target, which need not be here, and priced. What the
compiler made of it is kept: the next time takes seconds. `--known` prices what the repository has facts of and needs no
compiler; `--runs FILE` takes any other file with the same columns.
"""

import argparse
import math
import sys
from pathlib import Path

from _published_evidence import write_evidence
from _published_experts import lines
from _published_facts import (
    CACHE,
    KNOWN,
    cached_facts,
    compile_rows,
    facts_in,
    known_facts,
    known_run,
    last_words,
    write_known,
)
from _published_figures import (
    APART,
    BARS,
    figures,
    memory_figures,
    pairs_in_order,
    spearman_in_groups,
)
from _published_fit import fit, inside_share, left_out
from _published_links import LINKS, links
from _published_page import write_page
from _published_price import fits, price_of
from _published_rows import RUNS, CannotExpressError, obstacles, read_rows, runs_of

NO_FACTS = "no facts in the repository"


def main():
    options = _options()
    if options.links:
        sys.exit(print_links(options.links))
    ways, refused = expressed(options)
    runs = [known_run(known_facts(), of[0].row) for of in ways] if options.known else settled(ways, options)
    results, failed = priced(runs, options)
    timed = [one for one in results if one.run.is_timed]
    print_runs(results)
    print_refused(refused, failed)
    if results:
        for name, some in by_kind(timed or results).items():
            print_figures(name, some)
        num, near, too_large = memory_figures(results)
        print(f"\nmemory: {near} of {num} published peaks within 15 %")
        print(f"{len(too_large)} runs that ran are said not to fit: {', '.join(one.run.id for one in too_large)}")
        print("\nexperts' choices:")
        for line in lines(read_rows(options.runs), timed):
            print(f"  {line}")
    if options.fit and timed:
        print_fit(timed)
    if options.keep:
        facts = {run.id: facts for run in runs if (facts := cached_facts(run, options.cache))}
        write_known({**known_facts(), **facts})
        print(f"facts of {len(facts)} runs kept in {KNOWN}")
    if options.evidence:
        print(f"{write_evidence(timed)} runs written to the package, for what explain shows beside a price")
    if options.page:
        write_page(
            results,
            refused,
            {name: why for name, why in failed.items() if not why.startswith(NO_FACTS)},
            options.page,
        )


def _options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=RUNS, metavar="FILE", help="runs to try, with the same columns")
    parser.add_argument("--core", action="store_true", help="only the rows to start with")
    parser.add_argument("--known", action="store_true", help="only rows whose facts are in the repository; no compiler")
    parser.add_argument("--row", action="append", default=[], metavar="ID", help="only this row; may be repeated")
    parser.add_argument("--quality", default="AB", help="only rows of these qualities (default AB)")
    parser.add_argument(
        "--links",
        type=Path,
        nargs="?",
        const=LINKS,
        metavar="FILE",
        help="collectives, products and copies instead of runs: those published, or of a file with the same columns",
    )
    parser.add_argument("--fit", action="store_true", help="fit the constants, and leave out each source once")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="how many to compile at a time (default 2)")
    parser.add_argument("--cache", type=Path, default=CACHE, metavar="DIR", help=f"where facts are kept ({CACHE})")
    parser.add_argument("--keep", action="store_true", help="put the facts of these rows into the repository")
    parser.add_argument("--evidence", action="store_true", help="put runs and prices into the package, for explain")
    parser.add_argument("--page", type=Path, metavar="DIR", help="write the page and its plot into this folder of docs")
    return parser.parse_args()


def expressed(options):
    """Return the ways of the chosen rows, in the order to compile them, and why others cannot be expressed."""
    rows = read_rows(options.runs)
    if unknown := [name for name in options.row if name not in {row["id"] for row in rows}]:
        raise SystemExit(f"{options.runs} has no row {', '.join(unknown)}")
    ways, refused = [], {}
    for row in rows:
        is_chosen = row["id"] in options.row if options.row else row["quality"] in options.quality or _has_memory(row)
        if not is_chosen or (options.core and not row["core"]):
            continue
        try:
            ways.append(runs_of(row))
        except CannotExpressError as error:
            refused[row["id"]] = error
    return in_order(ways), refused


def settled(ways, options):
    """Compile runs with what is assumed first; where a device does not hold that, with what is tried next."""
    known = known_facts()
    waiting = {of[0].id: untried(of, known) for of in ways}
    runs = {}
    while waiting:
        runs |= {name: of[0] for name, of in waiting.items()}
        compile_rows([of[0] for of in waiting.values()], options.cache, options.jobs, options.runs)
        waiting = {
            name: others
            for name, (first, *others) in waiting.items()
            if others and (facts := cached_facts(first, options.cache)) and not is_held(first, facts)
        }
    return list(runs.values())


def untried(ways, known):
    """Return the ways of a row from the first on that the repository does not know to be too large."""
    first, *others = ways
    facts = facts_in(known, first)
    return untried(others, known) if others and facts and not is_held(first, facts) else ways


def is_held(run, facts):
    """Return whether a device holds what was compiled of a run."""
    return "error" not in facts and fits(run, facts)


def _has_memory(row):
    """Return whether a row counts for its memory, which rows of quality C may still state well."""
    return bool(row["memory_gib_per_device"])


def in_order(ways):
    """Order runs: core rows, one of each source, model, hardware and layout, then the rest by how much is alike."""
    seen, ranked = {}, []
    for of in sorted(ways, key=lambda of: not of[0].row["core"]):
        run = of[0]
        kind = (run.source, run.row["model"], run.target.split(":")[0], run.layout.name, run.row["remat"])
        seen[kind] = seen.get(kind, -1) + 1
        ranked.append((not run.row["core"], seen[kind], of))
    return [of for *_, of in sorted(ranked, key=lambda one: one[:2])]


def priced(runs, options):
    """Price every run whose facts are there; also return why the others are not priced."""
    known, results, failed = known_facts(), [], {}
    for run in runs:
        facts = facts_in(known, run) if options.known else cached_facts(run, options.cache)
        if facts is None:
            silent = "" if options.known else f", and the compiler gave no answer: {last_words(run, options.cache)}"
            failed[run.id] = f"{NO_FACTS}{silent}"
        elif "error" in facts:
            failed[run.id] = facts["error"]
        elif run.seconds is None:
            failed[run.id] = "no published time"
        else:
            results.append(price_of(run, facts))
    return results, failed


def print_runs(results):
    print(
        f"{'run':52} {'published':>10} {'low':>8} {'middle':>8} {'high':>8} {'ratio':>6} inside  memory GiB   verdict"
    )
    for one in results:
        memory = f"{one.peak / 2**30:6.1f}" + (f"/{one.run.memory / 2**30:5.1f}" if one.run.memory else "      ")
        print(
            f"{one.run.id[:52]:52} {one.run.seconds:10.4g} {one.low:8.3g} {one.seconds:8.3g} {one.high:8.3g} "
            f"{one.ratio:6.2f} {'yes' if one.is_inside else 'no':6} {memory}  {'fits' if one.fits else 'does not fit'}"
        )


def print_refused(refused, failed):
    """Print what stands in the way of rows, and of how many it is the only thing that does."""
    if refused:
        print(f"\n{len(refused)} rows cannot be expressed; by what stands in the way, and where it stands there alone:")
        print("  rows  alone")
    for kind, names, alone in obstacles(refused):
        print(f"  {len(names):4} {len(alone):6}  {kind}: {_some(alone or names)}")
    for name, error in refused.items():
        print(f"  {name}: {error}{' alone' if len({one.kind for one in error.obstacles}) == 1 else ''}")
    if failed:
        print(f"\n{len(failed)} rows are not priced:")
    by_reason = {}
    for name, reason in failed.items():
        by_reason.setdefault(reason.splitlines()[0][:160], []).append(name)
    for reason, names in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        print(f"  {len(names):3} {reason}: {_some(names)}")


def _some(names):
    return f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"


def by_kind(results):
    """Return runs of one program, and those with a pipeline, which are priced by arithmetic on two."""
    kinds = {"rows of quality A and B": 1, "such rows with a pipeline": 0}
    each = {name: [one for one in results if (one.run.layout.stages == 1) == is_one] for name, is_one in kinds.items()}
    return {name: some for name, some in each.items() if some}


def print_figures(name, timed):
    whole = figures(timed)
    each, mean = spearman_in_groups(timed)
    print(f"\n{whole['rows']} {name}")
    for name, what, better in (
        ("inside", "published inside the range", 1),
        ("median", "median |log(middle / published)|", -1),
        ("near", "within a factor of 1.35", 1),
        ("width", "widest range, high over low", -1),
    ):
        good = better * whole[name] >= better * BARS[name]
        print(f"  {what:36} {whole[name]:6.3f}  {'within' if good else 'BEYOND'} the bar of {BARS[name]}")
    if not math.isnan(mean):
        good = mean >= BARS["spearman"]
        what = f"Spearman, mean of {len(each)} groups"
        print(f"  {what:36} {mean:6.3f}  {'within' if good else 'BEYOND'} the bar of {BARS['spearman']}")
        in_order, apart = pairs_in_order(timed)
        print(f"  {in_order} of {apart} pairs in a group more than {APART - 1:.0%} apart are in the right order")
    for name in sorted({one.run.source for one in timed}):
        some = figures([one for one in timed if one.run.source == name])
        print(
            f"  {name:28} {some['rows']:4} rows: {100 * some['inside']:3.0f} % inside, median {some['median']:.3f}, "
            f"{100 * some['near']:3.0f} % within 1.35"
        )


def print_fit(results):
    fitted = ", ".join(
        f"{name} {key} {value}" for name, values in fit(results).items() for key, value in values.items()
    )
    print(f"\nconstants that fit: {fitted}; products reach {inside_share(results):.2f} of what they reach alone")
    print("each source by a fit to the others:")
    for name, values in left_out(results).items():
        print(
            f"  {name:28} {values['rows']:4} rows: {100 * values['inside']:3.0f} % inside, "
            f"median {values['median']:.3f}, {100 * values['near']:3.0f} % within 1.35"
        )


def print_links(path):
    measurements = links(path)
    print(f"{'what':44} {'published':>11} {'low':>11} {'middle':>11} {'high':>11}")
    for one in measurements:
        numbers = " ".join(f"{value:11.4g}" for value in (one.published, one.low, one.middle, one.high))
        print(f"{one.id[:44]:44} {numbers} {one.unit:8} {'inside' if one.is_inside else 'outside'}")
    share = sum(one.is_inside for one in measurements) / len(measurements)
    widest = max(one.high / one.low for one in measurements)
    print(f"{100 * share:.0f} % of {len(measurements)} rows inside, ranges {widest:.3g} wide; the bar is 85 %")
    return share < 0.85


if __name__ == "__main__":
    main()
