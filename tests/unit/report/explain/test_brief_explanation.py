"""What a terminal shows of a long explanation: the answer, the dearest lines and findings, within 60 lines."""

import functools
import gzip
from dataclasses import replace
from pathlib import Path

from outlay.analysis.findings.finding import Finding
from outlay.cli.output import MOST_LINES, print_facts_or_brief
from outlay.report.explain.brief_explanation import BriefExplanation
from outlay.report.explain.explain import explain

SAVED = Path(__file__).parents[3] / "golden" / "hlo" / "gpu-0.12.0.1-fsdp.hlo.gz"


@functools.cache
def long():
    """An explanation with many findings."""
    facts = explain(gzip.decompress(SAVED.read_bytes()).decode(), target="h100:1x8")
    kinds = ["resharding", "replicated", "donation", "sum-in-loop", "repeated-work", "unfused-attention"]
    many = [Finding(f"{kind}-{n}", "what costs " * 30, "the edit " * 10, 1000 - n) for n in range(5) for kind in kinds]
    return replace(facts, findings=tuple(many))


def test_the_brief_has_the_answer_the_dearest_lines_and_the_findings():
    brief, all_of_it = (str(each).splitlines() for each in (BriefExplanation(long()), long()))
    assert len(all_of_it) > MOST_LINES >= len(brief)
    assert brief[:3] == all_of_it[:3]
    start = next(number for number, line in enumerate(brief) if line.startswith("where the time goes"))
    assert sum("%" in line for line in brief[start:]) == 5
    text = "\n".join(brief)
    assert " 5. " in text
    assert "and 25 findings that cost less" in text
    assert brief[-1].endswith("notes: --all, or --html FILE")


def test_without_a_target_the_dearest_lines_are_those_that_send_most():
    facts = replace(explain(gzip.decompress(SAVED.read_bytes()).decode()), findings=())
    assert "collectives: " in str(BriefExplanation(facts))


def test_what_is_short_is_printed_whole_and_what_is_long_where_it_is_asked_for(capsys):
    def printed(facts, *, print_all):
        print_facts_or_brief(facts, lambda: BriefExplanation(facts), as_json=False, print_all=print_all)
        return capsys.readouterr().out.splitlines()

    short = replace(long(), findings=())
    assert "memory over the schedule" in "\n".join(printed(short, print_all=False))
    assert len(printed(long(), print_all=False)) <= MOST_LINES
    assert len(printed(long(), print_all=True)) > MOST_LINES
