"""Facts about values follow operations into calls, branches and scans, and out of calls alone."""

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from outlay.core.jax_tracing import CALLS, CHECKPOINTS
from outlay.program.value_facts import FactRules, facts_of, split_scan

pytestmark = pytest.mark.newest


def _only_negated(eqn, of):
    """A fact goes through `neg`, and through the name that a value gets; any other operation loses it."""
    return [of[0] if eqn.primitive.name in ("neg", "name") else None for _ in eqn.outvars]


def _not_handed_on(eqn, of):
    of_all, carried, scanned = split_scan(eqn, of)
    return [*of_all, *[None for _ in carried], *scanned]


RULES = FactRules(_only_negated, _not_handed_on, lambda name: name in (*CALLS, *CHECKPOINTS))


def results_of(function, *args, facts):
    jaxpr = jax.make_jaxpr(function)(*args)
    return facts_of(RULES.known(jaxpr, facts), jaxpr.jaxpr.outvars)


def test_a_fact_goes_through_operations_calls_and_checkpoints():
    def function(x, y):
        return jax.jit(jnp.negative)(-x), jax.checkpoint(lambda z: -z)(x), jnp.sin(x), -y

    assert results_of(function, 1.0, 1.0, facts=["of x", None]) == ["of x", "of x", None, None]


def test_what_a_barrier_and_a_loop_return():
    def function(x, rows):
        same = jax.lax.optimization_barrier((rows, x))
        total, each = jax.lax.scan(lambda carry, row: (carry + row, -row), x, rows)
        return *same, total, each

    assert results_of(function, 1.0, jnp.ones(3), facts=["of x", "of rows"]) == ["of rows", "of x", None, None]


def test_names_are_seen_in_scans_and_branches():
    def function(x, w, rows):
        def turn(carry, row):
            named = [checkpoint_name(-value, name) for value, name in ((carry, "carry"), (row, "row"), (w, "w"))]
            return sum(named), None

        total, _ = jax.lax.scan(turn, x, rows)
        branches = (lambda w: checkpoint_name(w, "first"), lambda w: checkpoint_name(jnp.sin(w), "second"))
        return total + jax.lax.switch(jnp.int32(0), branches, w)

    jaxpr = jax.make_jaxpr(function)(1.0, 1.0, jnp.ones(3))
    named = RULES.named(jaxpr, ["of x", "of w", "of rows"])
    assert named == {"row": "of rows", "w": "of w", "first": "of w"}
