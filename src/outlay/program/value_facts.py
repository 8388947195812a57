"""Follow facts about values, such as the parameters that they are made of, through a traced program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from jax.extend.core import Literal, jaxprs_in_params

from outlay.core.jax_tracing import COND, SCAN, scan_operands

NAME = "name"
"""The operation of `checkpoint_name`."""
_EACH = "optimization_barrier"
"""An operation with as many results as operands, each unchanged."""

T = TypeVar("T")


@dataclass(frozen=True)
class FactRules(Generic[T]):
    """How facts of one kind go from operation to operation. None stands for a value without a fact.

    Attributes:
        of_results: takes an operation that holds no program, and the facts of its operands.
        in_scan: takes a scan, and the facts of its operands; returns those of the arguments of its body.
        is_call: whether an operation of this name returns what the program that it holds returns.
    """

    of_results: Callable[[Any, Sequence[T | None]], Sequence[T | None]]
    in_scan: Callable[[Any, Sequence[T | None]], Sequence[T | None]]
    is_call: Callable[[str], bool]

    def known(self, jaxpr: Any, facts: Sequence[T | None]) -> Mapping[Any, T]:
        """Return the facts of the values of a program.

        Args:
            jaxpr: the program.
            facts: those of its arguments, or of its constants and arguments.
        """
        jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
        arguments = [*jaxpr.constvars, *jaxpr.invars][-len(facts) :] if facts else []
        known = {variable: fact for variable, fact in zip(arguments, facts, strict=True) if fact is not None}
        for eqn in jaxpr.eqns:
            of = facts_of(known, eqn.invars)
            if any(of):
                results = zip(eqn.outvars, self._of_results(eqn, of), strict=True)
                known.update({variable: fact for variable, fact in results if fact is not None})
        return known

    def operations(self, jaxpr: Any, facts: Sequence[T | None]) -> Iterator[tuple[Any, list[T | None]]]:
        """Yield the operations of a program, without the programs in it, each with the facts of its operands."""
        known = self.known(jaxpr, facts)
        for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
            yield eqn, facts_of(known, eqn.invars)

    def inside(self, eqn: Any, of: Sequence[T | None]) -> list[tuple[Any, Sequence[T | None]]]:
        """Return the programs that an operation holds, each with the facts of its arguments.

        Args:
            eqn: the operation.
            of: the facts of its operands.
        """
        inner = list(jaxprs_in_params(eqn.params))
        if eqn.primitive.name == SCAN:
            return [(one, self.in_scan(eqn, of)) for one in inner]
        if eqn.primitive.name == COND:
            return [(one, of[1:]) for one in inner]
        return [(one, of) for one in inner[:1] if len(getattr(one, "jaxpr", one).invars) == len(eqn.invars)]

    def named(self, jaxpr: Any, facts: Sequence[T | None]) -> dict[str, T]:
        """Return the facts of the values that `checkpoint_name` has named in a program, by their names."""
        named: dict[str, T] = {}
        for eqn, of in self.operations(jaxpr, facts):
            if eqn.primitive.name == NAME and of[0] is not None:
                named[eqn.params["name"]] = of[0]
            elif any(of):
                for inner, within in self.inside(eqn, of):
                    named |= self.named(inner, within)
        return named

    def _of_results(self, eqn: Any, of: Sequence[T | None]) -> Sequence[T | None]:
        if eqn.primitive.name == _EACH:
            return of
        inside = self.inside(eqn, of)
        if not inside:
            return self.of_results(eqn, of)
        if not self.is_call(eqn.primitive.name):
            return [None for _ in eqn.outvars]
        inner, within = inside[0]
        return facts_of(self.known(inner, within), getattr(inner, "jaxpr", inner).outvars)


def facts_of(known: Mapping[Any, T], atoms: Sequence[Any]) -> list[T | None]:
    """Return the facts of operands or results, by what is known of a program's values."""
    return [None if isinstance(atom, Literal) else known.get(atom) for atom in atoms]


def split_scan(eqn: Any, of: Sequence[T | None]) -> tuple[Sequence[T | None], Sequence[T | None], Sequence[T | None]]:
    """Return the facts of a scan's operands in three parts: for all turns, handed on, and scanned over."""
    num_consts, num_carried = scan_operands(eqn.params)
    return of[:num_consts], of[num_consts : num_consts + num_carried], of[num_consts + num_carried :]
