"""Apply what an error advises: each option of each fix, as a person would edit the rules."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from jax.sharding import PartitionSpec as P

import outlay
from outlay.core.error_types import Problem

NAMES = {"outlay": outlay, "P": P}
_PAIR = re.compile(r'\("[^"]*", [\w.]+\((?:[^()]|\([^()]*\))*\)\)')
NUMBER = re.compile(r"rule (\d+) \(")


def edits(problem: Problem, rules: Sequence[outlay.Rule]) -> Iterator[tuple[str, list[outlay.Rule]]]:
    """Every option of a fix, in its words, and the rules after it; of options that are not an edit of rules, none."""
    offender = _offender(problem, rules)
    if axis := re.search(r"axis '(\w+)' is not in", problem.what):
        assert offender is not None
        (meant,) = re.findall(r"did you mean '(\w+)'", problem.fix)
        spec = eval(repr(rules[offender].placement).replace(repr(axis[1]), repr(meant)), NAMES)
        yield problem.fix, [replace(rule, placement=spec) if i == offender else rule for i, rule in enumerate(rules)]
        return
    for line in problem.fix.split("\n"):
        for option in re.split(r",? or (?=\()|, or (?=delete|\+)", line):
            edited = _edited(option, offender, list(rules))
            if edited is not None:
                yield option, edited


def _offender(problem: Problem, rules: Sequence[outlay.Rule]) -> int | None:
    if at := NUMBER.match(problem.where):
        return int(at[1]) - 1
    return next((i for i, rule in enumerate(rules) if f"asked by rule {rule.written}" in problem.what), None)


def _edited(option: str, offender: int | None, rules: list[outlay.Rule]) -> list[outlay.Rule] | None:
    advised = option.partition("before rule")[0]  # what follows names a rule that is there
    pairs = [outlay.Rule(*eval(pair, NAMES)) for pair in _PAIR.findall(advised)]
    if moved := re.search(r"move it before rule (\d+)", option):
        assert offender is not None
        rules.insert(int(moved[1]) - 1, rules.pop(offender))
    elif "delete" in option and "optional=True" not in option:
        assert offender is not None
        del rules[offender]
    elif put := re.search(r"put (outlay\.[\w.]+\(.*?\)) before rule (\d+)", option):
        rules[int(put[2]) - 1 : int(put[2]) - 1] = eval(put[1], NAMES)
    elif otherwise := re.search(r'otherwise="(\w+)"', option):
        assert offender is not None
        rules[offender] = replace(rules[offender], otherwise=otherwise[1])
    elif pairs and "in its place" in option:
        assert offender is not None
        rules[offender : offender + 1] = pairs
    elif pairs and "before it" in option:
        assert offender is not None
        rules[offender:offender] = pairs
    elif pairs:
        rules[0:0] = pairs
    elif written := re.search(r"(?:write|all entries:) ((?:outlay\.layout\.follow|P)\([^()]*\))", option):
        assert offender is not None
        rules[offender] = replace(rules[offender], placement=eval(written[1], NAMES))
    elif strategy := re.search(r"(?:\+|add) (outlay\.[\w.]+\([^()]*\))", option):
        rules += outlay.Layout.of(eval(strategy[1], NAMES)).rules
    elif patterns := re.search(r'write ((?:"[^"]*"(?:, )?)+)|did you mean ((?:\'[^\']*\'(?: or )?)+)', option):
        assert offender is not None
        literals = re.findall(r"[\"']([^\"']*)[\"']", patterns[0])
        rules[offender : offender + 1] = [replace(rules[offender], pattern=pattern) for pattern in literals]
    else:
        return None
    return rules
