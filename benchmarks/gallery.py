"""The gallery: a static site of published training runs, each with its page, and an index that sorts.

`python benchmarks/gallery.py [FOLDER]`, or `make gallery` for the docs. The pages are drawn from the facts that the
repository has of these runs (`data/published_facts.json.gz`): no compiler is asked, and prices are those of today.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from _published_facts import facts_in, known_facts, known_run
from _published_page import LAYOUTS
from _published_rows import RUNS, read_rows
from _published_run import config_of

from outlay.analysis.cost.constants import product_speed
from outlay.analysis.cost.estimate import Estimate
from outlay.analysis.cost.price import price
from outlay.analysis.cost.schedule import Schedule
from outlay.core.quantities import counted, format_bytes, format_flops, format_range, format_seconds
from outlay.devices.mesh_spec import MeshSpec
from outlay.devices.target import Target
from outlay.render.html import html_of_page
from outlay.render.page import Cell, Chip, Code, Column, Facts, Line, Page, Row, Section, SortedTable, Stat, Stats
from outlay.report.explain.explain_schedule import PricedStep, timeline_blocks, what_if_blocks
from outlay.report.explain.throughput import Throughput
from outlay.search.candidate import mesh_info

FOLDER = Path(__file__).parents[1] / "docs" / "_gallery" / "gallery"

MODELS = {
    "MPT-760m": [
        "mpt-760m-2048-8xa100_40gb-bf16-b384-192",
        "mpt-760m-65536-8xa100_80gb-bf16-b16-114",
        "mpt-760m-2048-128xa100_40gb-bf16-b1536-188",
        "mpt-760m-2048-64xa100_40gb-bf16-b768-189",
        "mpt-760m-2048-8xh100_80gb-bf16-b384-68",
        "mpt-760m-2048-32xh100_80gb-bf16-b768-66",
    ],
    "MPT-3b": [
        "mpt-3b-2048-64xa100_40gb-bf16-b384-167",
        "mpt-3b-2048-128xa100_40gb-bf16-b768-166",
        "mpt-3b-8192-8xa100_80gb-bf16-b144-101",
        "mpt-3b-32768-8xh100_80gb-bf16-b144-42",
        "mpt-3b-2048-64xh100_80gb-bf16-b1152-46",
        "mpt-3b-2048-128xh100_80gb-bf16-b1024-15",
        "mpt-3b-2048-512xh100_80gb-bf16-b4096-13",
    ],
    "MPT-13b": [
        "mpt-13b-2048-128xa100_40gb-bf16-b2048-145",
        "mpt-13b-2048-64xa100_40gb-bf16-b1024-146",
        "mpt-13b-2048-32xa100_40gb-bf16-b448-147",
        "mpt-13b-2048-8xa100_80gb-bf16-b48-89",
        "mpt-13b-2048-8xh100_80gb-bf16-b16-33",
        "mpt-13b-32768-8xh100_80gb-bf16-b24-27",
        "mpt-13b-2048-64xh100_80gb-bf16-b128-30",
        "mpt-13b-2048-512xh100_80gb-bf16-b8192-7",
    ],
    "Llama 1B": ["nanotron-1b-8gpu-dp4-tp2-pp1-mb8"],
    "Llama 2 7B": [f"maxtext-a3-llama2-7b-{num}" for num in (8, 16, 32, 64, 128)],
    "GPT 18.4B": ["megatron-t1-18.4b-256"],
    "GPT 22B": ["megatron-megatron-22B-8-full", "megatron-megatron-22B-8-seqsel"],
    "GPT 175B": ["megatron-t2-175b-zero-3-384", "megatron-t2-175b-zero-3-768"],
    "MaxText 16B": [f"maxtext-v5e-16b-{slices}x256" for slices in (1, 2, 4, 32)],
    "MaxText 64B": [f"maxtext-v5e-64b-{slices}x256" for slices in (1, 2, 4, 32)],
}
"""Ten models, each with rows of the file of published runs: various chips, numbers of them, layouts and lengths."""


@dataclass(frozen=True)
class Exhibit:
    """A configuration of the gallery.

    Attributes:
        model: the name of the model.
        run: the published run.
        step: its priced step.
        peak: bytes that a device needs.
    """

    model: str
    run: object
    step: PricedStep
    peak: int

    @property
    def estimate(self) -> Estimate:
        """The time of its step."""
        return self.step.estimate

    @property
    def file(self) -> str:
        """The name of its page."""
        return f"{self.run.id}.html"

    @property
    def words(self) -> dict[str, str]:
        """The options of `lm`."""
        return dict(zip(self.run.words[::2], self.run.words[1::2], strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, help=f"where the site goes ({FOLDER})")
    folder = parser.parse_args().folder
    shown = exhibits()
    folder.mkdir(parents=True, exist_ok=True)
    for one in shown:
        (folder / one.file).write_text(html_of_page(page_of(one)), encoding="utf-8")
    (folder / "index.html").write_text(html_of_page(index_of(shown)), encoding="utf-8")
    print(f"{counted(len(shown), 'configuration')} in {folder / 'index.html'}")


def exhibits(models=None):
    """Price the chosen runs by the facts that the repository has.

    Args:
        models: the rows of each model; None for the whole gallery.

    Raises:
        SystemExit: there are no facts of some; the message has the command that compiles these.
    """
    rows, known = {row["id"]: row for row in read_rows(RUNS)}, known_facts()
    chosen = [(model, known_run(known, rows[name])) for model, names in (models or MODELS).items() for name in names]
    lacking = [run.id for _, run in chosen if "schedule" not in (facts_in(known, run) or {})]
    if lacking:
        listed = " ".join(f"--row {name}" for name in lacking)
        raise SystemExit(f"no facts of {len(lacking)} runs\n  fix: python benchmarks/published.py --keep {listed}")
    return [_exhibit(model, run, known[run.id]) for model, run in chosen]


def _exhibit(model, run, facts):
    schedule, target = Schedule.from_dict(facts["schedule"]), Target.parse(run.target)
    estimate, mesh = price(schedule, target), mesh_info(MeshSpec.parse(run.layout.text), target)
    return Exhibit(
        model,
        run,
        PricedStep(schedule, target, estimate, mesh, _throughput(run, target, estimate)),
        facts["peak"] + round(run.held),
    )


def _throughput(run, target, estimate):
    words = dict(zip(run.words[::2], run.words[1::2], strict=True))
    tokens, sequence, config = (
        int(words["--batch"]) * int(words["--sequence"]),
        int(words["--sequence"]),
        config_of(run.row),
    )
    # Six FLOPs a parameter and token; causal attention reads half of the tokens, forward once and backward twice.
    attended = 6 * config.num_layers * config.num_heads * config.head_dim * sequence
    peak = product_speed(target.hardware, "bfloat16")[0] * target.num_devices * estimate.seconds
    return Throughput(
        "tokens",
        tokens / estimate.seconds,
        tokens / estimate.seconds / target.num_devices,
        tokens * (6 * config.num_params + attended) / peak,
        estimate.flops * target.num_devices / peak,
        "bfloat16",
        estimate.seconds * target.num_devices / 3600 * 1e9 / tokens,
    )


def page_of(one: Exhibit) -> Page:
    """Lay out the page of one configuration."""
    run, estimate, through = one.run, one.estimate, one.step.throughput
    words, row = one.words, one.run.row
    is_named = run.layout.name in LAYOUTS
    where = f"--layout {run.layout.name} --mesh {run.layout.text} --target {run.target}"
    command = f"outlay explain lm {' '.join(run.words)} {where}" if is_named else run.command
    published = {
        "run": f"{row['framework']}, {row['source_repo']} {row['source_path']}, {row['source_date']}",
        "published": f"{format_seconds(run.seconds)} a step" if run.seconds else "no time of a step",
        "priced here": f"{format_seconds(estimate.seconds)}, with today's kernels of attention",
        "assumed": "; ".join(run.assumed) or "nothing",
    }
    sections = [
        block for block in estimate.laid_out().blocks if isinstance(block, Section) and block.title != "parts of a step"
    ]
    return Page(
        title=f"{one.model} on {run.target}, {run.layout.name}",
        chips=[
            Chip("priced, not run"),
            Chip(f"mesh {run.layout.text}"),
            Chip(f"{words['--batch']} sequences of {int(words['--sequence']):,} tokens"),
        ],
        blocks=[
            Line(
                f"{through.per_second:,.0f} tokens/s, {through.per_device:,.0f} a device; MFU {through.mfu:.0%}, HFU "
                f"{through.hfu:.0%}; {through.hours_per_billion:,.4g} device hours for a billion tokens"
            ),
            Stats(
                [
                    Stat(
                        "A step",
                        format_seconds(estimate.seconds),
                        format_range(estimate.seconds_low, estimate.seconds_high),
                    ),
                    Stat(
                        "Peak memory",
                        format_bytes(one.peak),
                        f"of {format_bytes(one.step.target.hardware.memory_bytes)} a device",
                    ),
                    Stat("Products", format_flops(estimate.flops), "on a device"),
                    Stat(
                        "Devices",
                        f"{one.step.target.num_devices:,}",
                        counted(one.step.target.num_islands, one.step.target.island),
                    ),
                ]
            ),
            *timeline_blocks(one.step),
            *what_if_blocks(one.step),
            *sections,
            Section("as it was published", [Facts(published)]),
            Section("how to have this page of your own", [Code(command)]),
        ],
        footer="Operations have the names that XLA gave them: the facts of published runs hold no lines.",
    )


def index_of(shown) -> Page:
    """Lay out the index."""
    columns = [
        (Column("model", is_key=True), lambda one: Cell(one.model, link=one.file)),
        (Column("target", "code"), lambda one: one.run.target),
        (
            Column("a step", "number", is_key=True),
            lambda one: Cell(format_seconds(one.estimate.seconds), order=one.estimate.seconds),
        ),
        (
            Column("MFU", "number", is_name=True, is_key=True),
            lambda one: Cell(f"{one.step.throughput.mfu:.0%}", order=one.step.throughput.mfu),
        ),
        (
            Column("HFU", "number", is_name=True),
            lambda one: Cell(f"{one.step.throughput.hfu:.0%}", order=one.step.throughput.hfu),
        ),
        (Column("memory", "number"), lambda one: Cell(format_bytes(one.peak), order=one.peak)),
        (
            Column("chips", "number"),
            lambda one: Cell(f"{one.step.target.num_devices:,}", order=one.step.target.num_devices),
        ),
        (Column("layout"), lambda one: one.run.layout.name),
        (Column("mesh", "code"), lambda one: one.run.layout.text),
        (
            Column("batch", "number"),
            lambda one: Cell(f"{int(one.words['--batch']):,}", order=int(one.words["--batch"])),
        ),
        (
            Column("sequence", "number"),
            lambda one: Cell(f"{int(one.words['--sequence']):,}", order=int(one.words["--sequence"])),
        ),
        (
            Column("tokens/s a chip", "number"),
            lambda one: Cell(f"{one.step.throughput.per_device:,.0f}", order=one.step.throughput.per_device),
        ),
        (Column("mostly"), lambda one: one.estimate.dominated_by),
        (
            Column("published", "number"),
            lambda one: Cell(format_seconds(one.run.seconds), order=one.run.seconds) if one.run.seconds else "",
        ),
    ]
    rows = [Row([cell(one) for _, cell in columns]) for one in shown]
    models = len({one.model for one in shown})
    return Page(
        title="Gallery: what Outlay says of training runs that others published",
        chips=[Chip(counted(len(shown), "configuration")), Chip(counted(models, "model")), Chip("nothing was run")],
        blocks=[
            Line(
                "Each was compiled by the real compiler for hardware that was not there, and priced. Click a head to "
                "sort, a model for its page: the step in the order of execution, and sliders for other hardware."
            ),
            Section("configurations", [SortedTable([column for column, _ in columns], rows)]),
            Line(
                "MFU counts six FLOPs a parameter and token, and causal attention; HFU what the program computes. "
                "Published times of MosaicML and nanotron are with the slower kernels of attention of their time.",
                "dim",
            ),
        ],
        footer="The seconds are estimates, and their ranges stand on the pages.",
    )


if __name__ == "__main__":
    sys.exit(main())
