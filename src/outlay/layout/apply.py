"""Apply one rule to one leaf: claim what is free, refuse what does not fit, note why."""

from __future__ import annotations

import dataclasses
import math
import traceback
from dataclasses import dataclass

from jax.sharding import PartitionSpec as P

from outlay.core.error_types import Problem
from outlay.core.quantities import format_bytes
from outlay.core.sizes import num_bytes
from outlay.core.suggest import did_you_mean
from outlay.layout.claims import Claims
from outlay.layout.placement import CannotPlace, Choice, Dims, On, Replicate
from outlay.layout.policies import OneDim
from outlay.layout.rule import Rule, spec_problem
from outlay.layout.storage import Storage


@dataclass(frozen=True)
class Application:
    """What a rule got of one leaf that it matched.

    Attributes:
        wanted: whether it wanted anything (a rule `P()` and a policy that declines do not).
        granted: whether it got some of it.
        deferred: whether it was not asked, because the leaf follows its parameter.
        lost: whether earlier rules had taken a dim or an axis that it asked for by name.
    """

    wanted: bool
    granted: bool
    deferred: bool = False
    lost: bool = False


def claim(claims: Claims, dim: int, axes: tuple[str, ...], number: int | None = None) -> bool:
    """Claim a dim, for a rule, if it and the axes are free and it divides."""
    if claims.closed_by is None and claims.is_free(dim, axes) and claims.divides(dim, axes):
        claims.dims[dim] = axes
        if number is not None:
            claims.owners[dim] = number
        return True
    return False


def apply_rule(rule: Rule, number: int, claims: Claims, problems: list[Problem]) -> Application:
    """Apply a rule to a leaf that it matches; problems are added to the list."""
    if isinstance(rule.placement, Replicate):
        return _close(number, claims, catch_all=rule.pattern == "**")
    if isinstance(rule.placement, On):
        return _settle_on(rule.placement, number, claims)
    if isinstance(rule.placement, Storage):
        return _store(rule, number, claims, rule.placement, problems)
    if isinstance(rule.placement, P):
        return _claim_spec(rule, number, claims, rule.placement, problems, reason=None)
    return _ask_policy(rule, number, claims, problems)


def _close(number: int, claims: Claims, *, catch_all: bool) -> Application:
    granted = claims.closed_by is None and not claims.is_split
    if granted:
        claims.closed_by = number
        claims.deciders.append(number)
        claims.reasons.append(f"rule {number + 1} says replicate()")
    # A catch-all at the end speaks of what is left, so it is never in anybody's shadow.
    return Application(wanted=not catch_all, granted=granted)


def _settle_on(placement: On, number: int, claims: Claims) -> Application:
    if claims.closed_by is not None or claims.is_split:
        return Application(wanted=True, granted=False, lost=True)
    claims.positions = placement.positions
    claims.closed_by = number
    claims.deciders.append(number)
    claims.reasons.append(f"rule {number + 1} puts it on position {', '.join(map(str, placement.positions))}")
    return Application(wanted=True, granted=True)


def _store(rule: Rule, number: int, claims: Claims, storage: Storage, problems: list[Problem]) -> Application:
    """Claim where the leaf is kept, and the dims that the same rule speaks of."""
    if what := _unstorable(storage, claims):
        fix = 'name values in the step: x = outlay.name(x, "up"), or write a pattern that leaves this leaf out'
        problems.append(Problem("not to be stored so", claims.path, f"{what}; asked by rule {_said(rule)}", fix))
        return Application(wanted=True, granted=True)
    granted = not claims.stored
    if granted:
        claims.stored = storage.stored
        claims.deciders.append(number)
        claims.reasons.append(f"{_STORED[storage.stored]} by rule {number + 1}")
    got = Application(wanted=True, granted=granted, lost=not granted)
    if storage.spec is None or not claims.shape:  # an optimizer's counter goes where its moments go
        return got
    split = _claim_spec(rule, number, claims, storage.spec, problems, reason=None)
    return dataclasses.replace(got, granted=got.granted or split.granted, lost=got.lost or split.lost)


_STORED = {"device": "kept on the device", "host": "kept on the host", "recomputed": "recomputed"}


def _unstorable(storage: Storage, claims: Claims) -> str:
    if claims.kind == "batch":
        return "the batch is read by one step and kept by none"
    if claims.kind == "state" and storage.stored == "recomputed":
        return "the state is what a step keeps for the next one: it cannot be recomputed"
    return ""


def _ask_policy(rule: Rule, number: int, claims: Claims, problems: list[Problem]) -> Application:
    if claims.is_scalar:
        return Application(wanted=False, granted=False)
    if claims.closed_by is not None:
        return Application(wanted=True, granted=False)
    asked = rule.placement
    try:
        answer = asked(claims.view())  # pyright: ignore[reportCallIssue]  # no other placement comes here
    except CannotPlace as refusal:
        _refused(rule, number, claims, refusal, problems)
        return Application(wanted=True, granted=True)
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        what = f"the policy of rule {_said(rule)} raised {type(error).__name__}: {error}, at {at.filename}:{at.lineno}"
        problems.append(Problem("policy that raises", claims.path, what, "correct it, or raise outlay.CannotPlace"))
        return Application(wanted=True, granted=True)
    choice = answer if isinstance(answer, Choice) else Choice(answer, "chosen by the policy")
    if not isinstance(choice.spec, P):
        what = f"the policy of rule {_said(rule)} returned {choice.spec!r}"
        problems.append(Problem("not a placement", claims.path, what, "return a PartitionSpec or outlay.Choice"))
        return Application(wanted=True, granted=True)
    if choice.spec == P():
        claims.reasons.append(choice.reason)
        claims.declined = True
        # A policy that takes whatever is left has lost nothing; one that asks for a certain dim has.
        return Application(wanted=choice.blocked, granted=False, lost=choice.blocked and isinstance(asked, OneDim))
    problem = spec_problem(choice.spec, claims.path) or _unknown_axis(rule, claims, choice.spec)
    if problem:
        problems.append(problem)
        return Application(wanted=True, granted=True)
    return _claim_spec(rule, number, claims, choice.spec, problems, reason=choice.reason)


def _claim_spec(
    rule: Rule, number: int, claims: Claims, spec: P, problems: list[Problem], *, reason: str | None
) -> Application:
    if claims.closed_by is not None:
        wanted = bool(claims.wanted(spec))
        return Application(wanted=wanted, granted=False, lost=wanted and reason is None)
    if len(spec) > len(claims.shape):
        problems.append(_too_many(rule, claims, spec))
        return Application(wanted=True, granted=True)
    wanted = claims.wanted(spec)
    granted = lost = False
    for dim, axes in wanted:
        if not claims.is_free(dim, axes):
            if claims.dims[dim] == axes:
                granted = True
            else:
                lost = reason is None
                claims.reasons.append(f"rule {number + 1} found dim {dim} or {'+'.join(axes)} taken")
        elif claim(claims, dim, axes, number):
            granted = True
            why = reason or f"dim {dim} over {'+'.join(axes)} by rule {number + 1}"
            claims.reasons.append(why + claims.whole_axes(axes))
        else:
            granted = True
            _fall_back(rule, number, claims, dim, axes, problems)
    if granted and number not in claims.deciders:
        claims.deciders.append(number)
    return Application(wanted=bool(wanted), granted=granted, lost=lost)


def _too_many(rule: Rule, claims: Claims, spec: P) -> Problem:
    rank = len(claims.shape)
    what = f"rule {_said(rule)} gives {len(spec)} dims, but the leaf has {rank}: {claims.shape}"
    settle = f'settle it by a rule before: ("{claims.path}", outlay.replicate())'
    if not rank:
        fix = f"a scalar has no dim to split: {settle}\nor write a pattern that leaves it out"
    else:
        entries = f"{rank} entr{'y' if rank == 1 else 'ies'}"
        fix = f"write a spec of at most {entries}, or a pattern that leaves this leaf out\nor {settle}"
    return Problem("too many dims", claims.path, what, fix)


def _fall_back(
    rule: Rule, number: int, claims: Claims, dim: int, axes: tuple[str, ...], problems: list[Problem]
) -> None:
    """The dim does not divide: do what the rule allows, and say what it costs."""
    odd = f"dim {dim} ({claims.shape[dim]}) does not divide by {'x'.join(axes)}={claims.num_pieces(axes)}"
    others = other_dims(claims, dim, axes) if rule.otherwise == "another_dim" else []
    if others:
        claim(claims, others[0], axes, number)
        claims.reasons.append(f"{odd}: rule {number + 1} allows another dim, took dim {others[0]}")
    elif rule.otherwise == "replicate":
        claims.reasons.append(f"{odd}: rule {number + 1} allows whole, {claims.whole_cost(dim, axes)}")
    else:
        problems.append(indivisible(claims, dim, axes, _said(rule)))


def _refused(rule: Rule, number: int, claims: Claims, refusal: CannotPlace, problems: list[Problem]) -> None:
    """The policy found no place: keep the leaf whole where the rule allows it."""
    whole = f"{format_bytes(num_bytes(claims.local_shape(), claims.dtype))} a device"
    if rule.otherwise == "replicate":
        claims.reasons.append(f"{refusal.what}: rule {number + 1} allows whole, {whole}")
        return
    fix = f'{refusal.fix}\nor keep such leaves whole with otherwise="replicate": {whole}'
    fix += f'\nor only this one, with a rule before it: ("{claims.path}", outlay.replicate())'
    problems.append(Problem("indivisible dim", claims.path, f"{refusal.what}; asked by rule {_said(rule)}", fix))


def _unknown_axis(rule: Rule, claims: Claims, spec: P) -> Problem | None:
    unknown = [axis for _, axes in claims.wanted(spec) for axis in axes if axis not in claims.axis_sizes]
    if not unknown:
        return None
    what = f"the policy of rule {_said(rule)} claims axis {unknown[0]!r}, which the mesh lacks"
    return Problem("unknown axis", claims.path, what, did_you_mean(unknown[0], claims.axis_sizes))


def _said(rule: Rule) -> str:
    return rule.written + (f" of {rule.source}" if rule.source else "")


def indivisible(claims: Claims, dim: int, axes: tuple[str, ...], rule: str) -> Problem:
    """The problem of a rule that splits a dim unevenly, with every way out."""
    size, pieces = claims.shape[dim], claims.num_pieces(axes)
    over = " x ".join(f"{axis}={claims.axis_sizes[axis]}" for axis in axes)
    what = (
        f"dim {dim} of {claims.shape} {claims.dtype} has size {size}, which does not divide by {over}"
        f"{f' = {pieces}' if len(axes) > 1 else ''} ({size} = {size // pieces} x {pieces} + {size % pieces}); "
        f"asked by rule {rule}"
    )
    if claims.is_scalar:
        ways = [_settle(claims)]
    else:
        ways = samples(claims, dim, axes) if claims.kind == "batch" else choices(claims, dim, axes)
    return Problem("indivisible dim", claims.path, what, "\n".join(ways))


def samples(claims: Claims, dim: int, axes: tuple[str, ...]) -> list[str]:
    """The ways out for a batch: no model can be changed to make it divide, but the batch and the mesh can."""
    size, pieces = claims.shape[dim], claims.num_pieces(axes)
    more, fewer = -(-size // pieces) * pieces, size // pieces * pieces
    if dim:
        cut = f", or cut it off at {fewer}" if fewer else ""
        return [f"pad dim {dim} of the batch to {more}{cut}", f"or {_settle(claims)}"]
    sizes = f"{more} or {fewer} samples" if fewer else f"{more} samples or a multiple, one for each of {pieces} devices"
    return [
        f"make batches of {sizes}, all devices together (--batch {more}, where a recipe takes it)",
        *([f"or drop the {size - fewer} samples of an uneven last batch"] if fewer else []),
        f'or pad to {more} samples, with "weight" 0 in the batch for those that do not count (outlay.train_step)',
        *_fewer_devices(claims, dim, axes),
        f"or, if dim 0 does not count samples, {_settle(claims)}",
    ]


def _settle(claims: Claims) -> str:
    whole = format_bytes(num_bytes(claims.shape, claims.dtype))
    return f'settle this leaf by a rule before: ("{claims.path}", outlay.replicate()), {whole} a device'


def _fewer_devices(claims: Claims, dim: int, axes: tuple[str, ...]) -> list[str]:
    """A smaller axis that divides, for the devices can serve another one."""
    (axis, size), *others = ((axis, claims.axis_sizes[axis]) for axis in axes)
    fits = math.gcd(claims.shape[dim], size)
    if others or fits == 1:
        return []
    return [f"or split over fewer devices: {axis}={fits}, and {size // fits} for another axis of the mesh"]


def choices(claims: Claims, dim: int, axes: tuple[str, ...]) -> list[str]:
    """The ways out of an indivisible dim, cheapest for a device first."""
    pieces = claims.num_pieces(axes)
    found = [_another_dim(claims, other, axes) for other in other_dims(claims, dim, axes)]
    fewer = [axis_subset for axis_subset in _smaller(axes) if claims.divides(dim, axis_subset)]
    found += [f"split it over {'+'.join(subset)} only" for subset in fewer]
    padded = math.ceil(claims.shape[dim] / pieces) * pieces
    row = num_bytes(claims.shape, claims.dtype) // claims.shape[dim]
    found.append(
        f"pad dim {dim} to {padded} in the model (+{padded - claims.shape[dim]}, "
        f"{format_bytes((padded - claims.shape[dim]) * row)} in all)"
    )
    whole = num_bytes(claims.local_shape(), claims.dtype)
    found.append(
        f'keep the dim whole with otherwise="replicate": {format_bytes(whole)} a device '
        f"({claims.whole_cost(dim, axes)})"
    )
    return [f"{'or ' if i else ''}{choice}" for i, choice in enumerate(found)]


def other_dims(claims: Claims, dim: int, axes: tuple[str, ...]) -> list[int]:
    """The free dims that these axes do divide, largest first."""
    fitting = [
        other
        for other in range(len(claims.shape))
        if other != dim and claims.dims[other] is None and claims.shape[other] and claims.divides(other, axes)
    ]
    return sorted(fitting, key=lambda other: (-claims.shape[other], other))


def _another_dim(claims: Claims, other: int, axes: tuple[str, ...]) -> str:
    dims: Dims = tuple(axes if i == other else taken or () for i, taken in enumerate(claims.dims))
    cost = format_bytes(num_bytes(claims.local_shape(dims), claims.dtype))
    return f'split dim {other} (size {claims.shape[other]}) with otherwise="another_dim": {cost} a device'


def _smaller(axes: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [(axis,) for axis in axes] if len(axes) > 1 else []
