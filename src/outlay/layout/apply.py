"""Apply one rule to one leaf: claim what is free, refuse what does not fit, record why."""

from __future__ import annotations

import dataclasses
import traceback
from dataclasses import dataclass

from jax.sharding import PartitionSpec as P

from outlay.core.array_leaves import num_bytes
from outlay.core.error_types import Problem
from outlay.core.quantities import counted, format_bytes
from outlay.layout.leaf_plan import LeafAssignment
from outlay.layout.placement import CannotPlace, Choice, On, Replicate, Storage, is_of_products, is_optimizer
from outlay.layout.policies import OneDim
from outlay.layout.rule import Rule, spec_problem


@dataclass(frozen=True)
class Application:
    """What a rule got of one leaf that it matched.

    Attributes:
        requested: whether it asked for anything (a rule `P()` and a policy that declines do not).
        granted: whether it got some of it.
        deferred: whether it was not applied, because the leaf follows its parameter.
        lost: whether earlier rules had taken a dim or an axis that it asks for by name.
    """

    requested: bool
    granted: bool
    deferred: bool = False
    lost: bool = False


def apply_rule(rule: Rule, number: int, assignment: LeafAssignment) -> Application:
    """Apply a rule to a leaf that it matches; what does not fit becomes a problem of the assignment."""
    if isinstance(rule.placement, Replicate):
        return _replicate(number, assignment, is_catch_all=rule.pattern == "**")
    if isinstance(rule.placement, On):
        return _put_on(rule.placement, number, assignment)
    if isinstance(rule.placement, Storage):
        return _store(rule, number, assignment, rule.placement)
    if isinstance(rule.placement, P):
        return _claim_spec(rule, number, assignment, rule.placement)
    if is_of_products(rule.placement):
        return _say_how_multiplied(rule, number, assignment)
    return _apply_policy(rule, number, assignment)


def _refuse(assignment: LeafAssignment, kind: str, what: str, fix: str) -> Application:
    """Add a problem. The rule counts as served, so that the checks of rules do not report it again."""
    assignment.problems.append(Problem(kind, assignment.path, what, fix))
    return Application(requested=True, granted=True)


def _replicate(number: int, assignment: LeafAssignment, *, is_catch_all: bool) -> Application:
    granted = assignment.closed_by is None and not assignment.is_split
    if granted:
        assignment.close(number, f"rule {number + 1} says replicate()")
    # A catch-all at the end takes what is left, so it never counts as shadowed.
    return Application(requested=not is_catch_all, granted=granted)


def _put_on(placement: On, number: int, assignment: LeafAssignment) -> Application:
    if assignment.closed_by is not None or assignment.is_split:
        return Application(requested=True, granted=False, lost=True)
    assignment.positions = placement.positions
    assignment.close(number, f"rule {number + 1} puts it on position {', '.join(map(str, placement.positions))}")
    return Application(requested=True, granted=True)


def _store(rule: Rule, number: int, assignment: LeafAssignment, storage: Storage) -> Application:
    """Claim where the leaf is stored, and the dims that the same rule splits."""
    if what := _unstorable(storage, assignment):
        fix = 'name values in the step: x = outlay.name(x, "up"), or write a pattern that leaves this leaf out'
        return _refuse(assignment, "unsupported storage", f"{what}; asked by rule {rule.written_with_source}", fix)
    granted = not assignment.stored
    if granted:
        assignment.stored = storage.stored
        assignment.deciding_rules.append(number)
        assignment.reasons.append(f"{_STORED[storage.stored]} by rule {number + 1}")
    stored = Application(requested=True, granted=granted, lost=not granted)
    # How a leaf is stored and how it is split are two claims: either may be lost to an earlier rule (decision 33).
    if storage.spec is None or not assignment.shape:  # an optimizer's counter is stored with its moments
        return stored
    split = _claim_spec(rule, number, assignment, storage.spec)
    return dataclasses.replace(stored, granted=stored.granted or split.granted, lost=stored.lost or split.lost)


_STORED = {"device": "kept on the device", "host": "kept on the host", "recomputed": "recomputed"}


def _unstorable(storage: Storage, assignment: LeafAssignment) -> str:
    if assignment.kind == "batch":
        return "the batch is read by one step and not kept"
    if assignment.kind == "state" and storage.stored == "recomputed":
        return "the state is what a step keeps for the next one: it cannot be recomputed"
    return ""


def _say_how_multiplied(rule: Rule, number: int, assignment: LeafAssignment) -> Application:
    """Record how a parameter is multiplied; other rules say where it lives."""
    if assignment.kind != "state":
        of = "a sample" if assignment.kind == "batch" else "a value inside the step"
        what = f"it is {of}, and FP8 is asked for by parameter; asked by rule {rule.written_with_source}"
        return _refuse(assignment, "no parameter", what, 'name parameters, as ("**.kernel", outlay.layout.fp8())')
    if not is_optimizer(assignment.path):
        assignment.reasons.append(f"{rule.placement} by rule {number + 1}")
    return Application(requested=False, granted=False)


def _apply_policy(rule: Rule, number: int, assignment: LeafAssignment) -> Application:
    if assignment.is_scalar:  # no policy need think of them
        return Application(requested=False, granted=False)
    if assignment.closed_by is not None:
        return Application(requested=True, granted=False)
    policy, name = rule.placement, f"the policy of rule {rule.written_with_source}"
    try:
        answer = policy(assignment.view())  # pyright: ignore[reportCallIssue]  # no other placement comes here
    except CannotPlace as refusal:
        return _keep_whole(rule, number, assignment, refusal)
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{name} raised {type(error).__name__}: {error}, at {at.filename}:{at.lineno}"
        return _refuse(assignment, "policy that raises", what, "correct it, or raise outlay.layout.CannotPlace")
    choice = answer if isinstance(answer, Choice) else Choice(answer, "chosen by the policy")
    if not isinstance(choice.spec, P):
        what = f"{name} returned {choice.spec!r}"
        return _refuse(assignment, "not a placement", what, "return a PartitionSpec or outlay.layout.Choice")
    if choice.spec == P():  # it claims nothing, and leaves the dims to later rules (decision 4)
        assignment.reasons.append(choice.reason)
        assignment.declined = True
        # A policy that takes whatever is free has lost nothing; one that asks for a certain dim has.
        lost = choice.blocked and isinstance(policy, OneDim)
        return Application(requested=choice.blocked, granted=False, lost=lost)
    if problem := spec_problem(choice.spec, assignment.path):
        return _refuse(assignment, problem.kind, problem.what, problem.fix)
    for axis in (axis for _, axes in assignment.split_dims(choice.spec) for axis in axes):
        if axis not in assignment.axis_sizes:
            from outlay.core.suggest import did_you_mean

            what = f"{name} claims axis {axis!r}, which the mesh lacks"
            return _refuse(assignment, "unknown axis", what, did_you_mean(axis, assignment.axis_sizes))
    return _claim_spec(rule, number, assignment, choice.spec, choice.reason)


def _keep_whole(rule: Rule, number: int, assignment: LeafAssignment, refusal: CannotPlace) -> Application:
    """Keep a leaf whole that a policy could not place, if the rule allows it."""
    whole = f"{format_bytes(num_bytes(assignment.local_shape(), assignment.dtype))} a device"
    if rule.otherwise == "replicate":
        assignment.reasons.append(f"{refusal.what}: kept whole as rule {number + 1} allows, {whole}")
        return Application(requested=True, granted=True)
    fix = f'{refusal.fix}\nor keep such leaves whole with otherwise="replicate": {whole}'
    fix += f'\nor only this one, with a rule before it: ("{assignment.path}", outlay.replicate())'
    what = f"{refusal.what}; asked by rule {rule.written_with_source}"
    return _refuse(assignment, "indivisible dim", what, fix)


def _claim_spec(rule: Rule, number: int, assignment: LeafAssignment, spec: P, reason: str = "") -> Application:
    """Claim the dims that a spec splits; `reason` is given if a policy chose it."""
    requested = assignment.split_dims(spec)
    if assignment.closed_by is not None:
        return Application(requested=bool(requested), granted=False, lost=bool(requested) and not reason)
    if len(spec) > len(assignment.shape):
        return _refuse_long_spec(rule, assignment, spec)
    granted = lost = False
    for dim, axes in requested:
        if assignment.is_free(dim, axes):
            granted = True
            if assignment.claim(dim, axes, number):
                why = reason or f"dim {dim} over {'+'.join(axes)} by rule {number + 1}"
                assignment.reasons.append(why + assignment.one_device_text(axes))
            else:
                _fall_back(rule, number, assignment, dim, axes)
        elif assignment.dims[dim] == axes:
            granted = True
        else:
            lost = not reason
            assignment.reasons.append(f"rule {number + 1} asks for dim {dim} over {'+'.join(axes)}: already taken")
    if granted and number not in assignment.deciding_rules:
        assignment.deciding_rules.append(number)
    return Application(requested=bool(requested), granted=granted, lost=lost)


def _refuse_long_spec(rule: Rule, assignment: LeafAssignment, spec: P) -> Application:
    rank = len(assignment.shape)
    entries = counted(len(spec), "entry", "entries")
    what = f"rule {rule.written_with_source} has {entries}, but the leaf has {counted(rank, 'dim')}: {assignment.shape}"
    settle = f'settle it by a rule before: ("{assignment.path}", outlay.replicate())'
    if rank:
        entries = counted(rank, "entry", "entries")
        fix = f"write a spec of at most {entries}, or a pattern that leaves this leaf out\nor {settle}"
    else:
        fix = f"a scalar has no dim to split: {settle}\nor write a pattern that leaves it out"
    return _refuse(assignment, "too many dims", what, fix)


def _fall_back(rule: Rule, number: int, assignment: LeafAssignment, dim: int, axes: tuple[str, ...]) -> None:
    """Do what the rule allows with an indivisible dim, and say what it costs."""
    odd = f"dim {dim} ({assignment.shape[dim]}) is not divisible by {'x'.join(axes)}={assignment.num_pieces(axes)}"
    others = assignment.other_dims(dim, axes) if rule.otherwise == "another_dim" else []
    if others:
        assignment.claim(others[0], axes, number)
        assignment.reasons.append(f"{odd}: split dim {others[0]} instead, as rule {number + 1} allows")
    elif rule.otherwise == "replicate":
        assignment.reasons.append(f"{odd}: kept whole as rule {number + 1} allows, {assignment.whole_cost(axes)}")
    else:
        from outlay.layout.indivisible import indivisible

        assignment.problems.append(indivisible(assignment, dim, axes, rule.written_with_source))
