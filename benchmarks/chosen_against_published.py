"""What `outlay.choose` finds beside the configurations that others published, of three models too large for one host.

Each published run is priced as its source lays it out, and as a search lays it out on the same devices, with the same
batch, sequence and precision. Both are today's program of Outlay's model, with today's attention, so that the layout is
all that differs; the published seconds stand beside them. What is compiled is kept: the next time takes seconds for
each search's arithmetic. A search takes 5 to 15 minutes on two cores.

    python benchmarks/chosen_against_published.py [--row megatron-gpt3-175B-64-full] [--num-candidates 12]
"""

import argparse
import dataclasses
import datetime
import functools
import os
import re
import sys

import _published_price
from _published_facts import CACHE, cached_facts, compile_rows
from _published_price import Priced
from _published_rows import RUNS, CannotExpressError, read_rows, run_of, same_in_all_layouts, target_of

MODELS = {
    "Llama 3.1 405B": (r"llama3\.1-405b", "h100", "lm"),
    "GPT-3 175B": (r"gpt(3)?-175b", "a100-80gb", "lm"),
    "DeepSeek-V3": (r"deepseekv3", "h100", "moe"),
}
"""A pattern of the model's name in the rows, the hardware, and the recipe."""

SLACK = 1.01
"""What is chosen is no dearer than a published configuration if a step takes at most so many times as long."""


@dataclasses.dataclass(frozen=True)
class Compared:
    """A published configuration beside what a search finds.

    Attributes:
        row: the published run.
        priced: the price of a step as it was laid out; None if that cannot be expressed.
        why: why not.
        chosen: what the search chose.
    """

    row: dict
    priced: Priced | None
    why: str
    chosen: object

    @property
    def published(self) -> float:
        """Published seconds of a step."""
        return float(self.row["step_time_s"] or self.row["derived_step_time_s"])

    @property
    def is_no_dearer(self) -> bool:
        """Whether what is chosen fits and is as fast, by price; as the published time, where there is no price."""
        against = self.priced.seconds if self.priced else self.published
        return self.chosen.price.fits and self.chosen.price.seconds <= SLACK * against


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", default=[], metavar="ID", help="only this row; may be repeated")
    parser.add_argument("--num-candidates", type=int, default=12, metavar="N", help="how many a search compiles")
    parser.add_argument("--timeout", type=float, default=900.0, metavar="S", help="seconds for each (default 900)")
    asked = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"  # this process only plans
    search = functools.cache(functools.partial(chosen, asked.num_candidates, asked.timeout))
    print(f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}: python {' '.join(sys.argv)}\n")
    print("| run | published | priced | chosen | priced | of published | of its price |")
    print("|---|---|---|---|---|---|---|")
    compared = []
    for row in read_rows(RUNS):
        recipe = recipe_of(row)
        if recipe is not None and (not asked.row or row["id"] in asked.row):
            priced, why = price_of(row)
            compared.append(Compared(row, priced, why, search(recipe, same_in_all_layouts(row), target_of(row))))
            print(line(compared[-1]), flush=True)
    for one in compared:
        if one.why:
            print(f"\n{one.row['id']} is compared with its published time: {one.why}")
    behind = [one.row["id"] for one in compared if not one.is_no_dearer]
    print(f"\nwhat is chosen is no dearer than {len(compared) - len(behind)} of {len(compared)}")
    sys.exit(f"it is dearer than {', '.join(behind)}" if behind else 0)


def recipe_of(row):
    """Return the recipe of a row's model; None for rows of other models or hardware."""
    for pattern, hardware, recipe in MODELS.values():
        if re.fullmatch(pattern, row["model"].lower()) and row["outlay_target"].startswith(f"{hardware}:"):
            return recipe
    return None


def price_of(row):
    """Return the price of a published configuration, or None and why it cannot be expressed."""
    try:
        run = run_of(row)
    except CannotExpressError as error:
        return None, str(error)
    compile_rows([run], CACHE, 2)
    facts = cached_facts(run, CACHE)
    if "error" in facts:
        return None, facts["error"].partition("\n")[0]
    return _published_price.price_of(run, facts), ""


def chosen(num_candidates, timeout, recipe, words, target):
    """Return what a search chooses; its progress and its paragraph go to stderr."""
    from outlay.recipes.choose import choose_by_words

    selection = choose_by_words(
        recipe,
        words,
        target,
        narrowed={"layouts": None, "meshes": None, "mode": None},
        compiler_options=None,
        num_candidates=num_candidates,
        processes=None,
        timeout=timeout,
    )
    print(f"{target} in {selection.seconds:.0f} s: {selection.explained}", file=sys.stderr, flush=True)
    return selection.chosen


def line(one):
    """Return a row of the table."""
    price, published = one.chosen.price, one.published
    priced = f"{one.priced.seconds:.2f} s" + ("" if one.priced.fits else ", does not fit") if one.priced else ""
    candidate = one.chosen.candidate
    cells = [
        f"`{one.row['id']}`",
        f"{published:.2f} s",
        priced or "not expressed",
        f"`{' '.join([candidate.layout, candidate.mesh, *candidate.all_words])}`",
        f"{price.seconds:.2f} s, {price.peak_bytes / 2**30:.1f} GiB",
        f"{price.seconds / published:.2f}",
        f"{price.seconds / one.priced.seconds:.2f}" if one.priced else "",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
