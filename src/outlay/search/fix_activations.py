"""Act on findings of `explain` about activations: try rules for them, and keep rules that move fewer bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jax.sharding import PartitionSpec as P

from outlay.analysis.findings.compiler_messages import FULL_REMATERIALIZATION
from outlay.analysis.findings.offered_rules import line_pattern
from outlay.analysis.hlo.hlo_module import SourceLine
from outlay.core.error_types import ExplainError, OutlayError
from outlay.core.one_line import OneLine
from outlay.core.public_names import called_as
from outlay.core.quantities import counted, format_bytes
from outlay.layout.layout import Layout
from outlay.layout.placement import spec_text
from outlay.layout.rule import SOURCE, Rule
from outlay.program.program import Program
from outlay.render.page import Block, Code, Column, Line, Page, Section, Table
from outlay.render.report import Report
from outlay.report.explain.explain import explain
from outlay.report.explain.explanation import Explanation

_OF_ACTIVATIONS = frozenset(
    ("resharding", "all-to-all-in-fsdp", "gathered-batch", "whole-parameter-gather", FULL_REMATERIALIZATION)
)
"""Kinds of findings that a rule for the value at their line may fix."""

MAX_COMPILED = 16
"""The largest number of layouts to compile."""


@dataclass(frozen=True)
class Try(OneLine):
    """A rule that was tried, on top of the rules that helped before it.

    Attributes:
        rule: the rule.
        finding: the kind of finding that it should fix.
        bytes_per_step: the bytes that a device sends in a step with it; None if the rule cannot be applied.
        why_not: why it cannot be applied: the first line of the error; else empty.
        helps: whether it is part of the fix.
    """

    rule: Rule
    finding: str
    bytes_per_step: int | None
    why_not: str = ""
    helps: bool = False

    @property
    def outcome(self) -> str:
        """The outcome in words."""
        if self.bytes_per_step is None:
            return self.why_not
        return format_bytes(self.bytes_per_step) + (", kept" if self.helps else "")


@dataclass(frozen=True)
class Fix(Report):
    """Rules with which a program moves fewer bytes, and their gain; returned by `outlay.fix`.

    Attributes:
        rules: the rules that help; they belong before all others.
        layout: these rules and the program's own.
        before: the explanation of the program without them.
        after: the explanation with them; the same if none helps.
        tried: all rules that were compiled or refused.
    """

    rules: tuple[Rule, ...]
    layout: Layout
    before: Explanation
    after: Explanation
    tried: tuple[Try, ...]

    @property
    def python(self) -> str:
        """The rules as Python code for the front of a layout; empty if none helps."""
        if not self.rules:
            return ""
        lines = [f'    ("{rule.pattern}", {spec_text(rule.spec or P(), quote=_QUOTE)}),' for rule in self.rules]
        return "\n".join(["layout = outlay.Layout([", *lines, "]) + layout"])

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        tried = [
            {
                "pattern": one.rule.pattern,
                "spec": spec_text(one.rule.spec or P()),
                "finding": one.finding,
                "bytes_per_step": one.bytes_per_step,
                "why_not": one.why_not,
                "helps": one.helps,
            }
            for one in self.tried
        ]
        figures = {"before": dict(_figures(self.before)), "after": dict(_figures(self.after))}
        return {"python": self.python, **figures, "tried": tried}

    def _page(self) -> Page:
        num = counted(len(self.tried), "rule")
        if not self.tried:
            headline = "nothing to try: no finding is of an activation whose line is known"
        elif self.rules:
            headline = f"of {num} tried, {len(self.rules)} kept:"
        else:
            headline = f"nothing helped: with none of {num} tried does the program move less"
        return Page(
            "Rules with which a device sends less",
            [*self._rules_page(), *self._tried_page()],
            headline=headline,
            headline_style="good" if self.rules else "",
        )

    def _rules_page(self) -> Iterator[Block]:
        if not self.rules:
            return
        # Not indented, as code blocks are in text: it is to be pasted.
        yield from (Line(line, medium="text") for line in ("", *self.python.splitlines()))
        yield Section("before the layout", [Code(self.python)], medium="html")
        before, after = dict(_figures(self.before)), dict(_figures(self.after))
        columns = [
            (Column(""), lambda what: what),
            (Column("before", "number"), lambda what: _in_words(what, before.get(what, 0))),
            (Column("after", "number"), lambda what: _in_words(what, after.get(what, 0))),
        ]
        yield Section("on a device", [Table.of({**before, **after}, columns)])
        if any(":" in rule.pattern for rule in self.rules):
            yield Line(
                "a rule by line moves with every edit above it: name the function, if it has one value of its own"
            )

    def _tried_page(self) -> Iterator[Block]:
        if self.tried:
            columns = [
                (Column("tried", "code"), lambda one: one.rule.pattern),
                (Column("as", "code"), lambda one: spec_text(one.rule.spec or P())),
                (Column("for"), lambda one: one.finding),
                (Column("bytes a step", "words"), lambda one: one.outcome),
            ]
            yield Section("what was tried", [Table.of(self.tried, columns)])


_QUOTE = '"'  # Python 3.11 takes no quotes of its own kind inside an f-string


@called_as("outlay.fix(program)")
def fix(program: Program, *, explanation: Explanation | None = None) -> Fix:
    """Try rules for the activations in the findings of `outlay.explain`; keep those with which fewer bytes are moved.

    At most 16 rules are compiled, and nothing is run. A rule names a value by the function that returns it or by its
    line, so the model needs no change.

    Args:
        program: a program in mode auto, of any step but a graph of parts.
        explanation: its explanation, if you have one already.

    Raises:
        ExplainError: it is in another mode, its axes are explicit, or its step is a graph.

    Example:
        >>> import optax
        >>> def mlp(x, params):
        ...     return jnp.tanh(x @ params["up"]) @ params["down"]
        >>> def loss(params, tokens, keys):
        ...     x = params["embed"][tokens]
        ...     logits = (x + mlp(x, params)) @ params["embed"].T
        ...     return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean(-1), {}
        >>> optimizer, shapes = optax.sgd(0.1), {"embed": (128, 16), "up": (16, 64), "down": (64, 16)}
        >>> program = outlay.program(
        ...     outlay.train_step(loss, optimizer),
        ...     outlay.init_state(lambda key: {name: jnp.ones(shape) for name, shape in shapes.items()}, optimizer),
        ...     np.zeros((64, 32), np.int32), mesh=outlay.mesh(data=8),
        ...     layout=outlay.Layout([("params.embed", P(None, "data"))])
        ...     + outlay.fsdp(min_size=8) + outlay.data_parallel())
        >>> fixed = outlay.fix(program)
        >>> print(fixed.python)
        layout = outlay.Layout([
            ("@mlp", P("data")),
        ]) + layout
        >>> fixed.after.bytes_per_step < fixed.before.bytes_per_step / 5
        True
    """
    if program.why_no_source_rules:
        raise ExplainError(
            f"activations are placed by rules in mode auto on automatic axes; this is {program.why_no_source_rules}\n"
            '  fix: outlay.program(..., mode="auto") on a mesh without explicit axes'
        )
    before = after = explanation or explain(program)
    rules: list[Rule] = []
    tried: list[Try] = []
    num_compiled = 0
    for finding in before.findings:
        if finding.kind not in _OF_ACTIVATIONS or finding.source is None:
            continue
        best: tuple[Explanation, int] | None = None
        for rule in _rules_for(finding.source, program):
            if num_compiled >= MAX_COMPILED or rule in [one.rule for one in tried]:
                continue
            try:
                # The rules that helped before stay: two findings may have one cause.
                got = explain(program.with_layout(Layout([*rules, rule]) + program.layout))
            except OutlayError as error:
                tried.append(Try(rule, finding.kind, None, _reason(error)))
                continue
            num_compiled += 1
            tried.append(Try(rule, finding.kind, got.bytes_per_step))
            # A rule that sends less is no help if the step no longer fits.
            if got.bytes_per_step < (best[0] if best else after).bytes_per_step and got.fits is not False:
                best = got, len(tried) - 1
        if best is not None:
            after, number = best
            rules.append(tried[number].rule)
            tried[number] = Try(tried[number].rule, finding.kind, after.bytes_per_step, helps=True)
    return Fix(tuple(rules), Layout(rules) + program.layout, before, after, tuple(tried))


def _rules_for(source: SourceLine, program: Program) -> Iterator[Rule]:
    """Yield rules that may fix a finding at a line: its value split like the batch, or also along its last dim."""
    of_batch = next((leaf.dims[0] for leaf in program.plan.of_kind("batch") if leaf.dims and leaf.dims[0]), ())
    if not of_batch:
        return
    first = of_batch[0] if len(of_batch) == 1 else of_batch
    others = [axis for axis, size in program.mesh.shape.items() if axis not in of_batch and size > 1]
    name = source.function.rpartition("<locals>.")[2].removesuffix(".__call__")
    patterns = [f"{SOURCE}{name}"] if name.replace(".", "").isidentifier() else []
    for pattern in [*patterns, line_pattern(source)]:
        yield Rule(pattern, P(first))
        rank = _rank(program, pattern) if others else 0
        for axis in others:
            if rank > 1:
                yield Rule(pattern, P(first, *[None] * (rank - 2), axis))


def _rank(program: Program, pattern: str) -> int:
    """Count the dims of the values that a pattern matches; 0 if there are none, or they differ."""
    try:
        plan = program.with_layout(Layout([Rule(pattern, P())]) + program.layout).plan
    except OutlayError:
        return 0
    ranks = {len(leaf.shape) for leaf in plan.of_kind("intermediate") if leaf.path.startswith(pattern)}
    return ranks.pop() if len(ranks) == 1 else 0


def _reason(error: OutlayError) -> str:
    """Return what is wrong, without where: the line below the headline of the first problem."""
    lines = [line.strip() for line in str(error).splitlines()]
    return lines[2] if len(lines) > 2 else lines[0]


def _figures(explanation: Explanation) -> Iterator[tuple[str, int]]:
    for kind, total in explanation.by_kind().items():
        yield f"{kind}, runs", total.num_runs
    yield "bytes a step", explanation.bytes_per_step
    if explanation.memory is not None:
        yield "memory", explanation.memory.peak


def _in_words(what: str, value: int) -> str:
    return str(value) if what.endswith("runs") else format_bytes(value)
