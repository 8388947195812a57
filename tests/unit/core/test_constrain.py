"""`constrain` outside a program gives its values back; inside, it asks the resolver of that program only."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import outlay
from outlay.core.constrain import use_resolver


def test_outside_a_program_the_tree_comes_back_itself() -> None:
    tree = {"w": jnp.ones(3), "empty": None}
    assert outlay.constrain(tree, "grads") is tree


def test_inside_the_resolver_gets_the_name_and_the_tree() -> None:
    seen: list[tuple[Any, Any, bool]] = []

    def resolver(where: Any, tree: Any, optional: bool) -> Any:
        seen.append((where, tree, optional))
        return "resolved"

    with use_resolver(resolver):
        assert outlay.constrain([1, 2], "grads") == "resolved"
        assert outlay.constrain([3], P("data"), optional=True) == "resolved"
    assert seen == [("grads", [1, 2], False), (P("data"), [3], True)]
    assert outlay.constrain("again", "grads") == "again"


def test_nested_programs_ask_the_innermost_resolver_and_give_way_again() -> None:
    with use_resolver(lambda where, tree, optional: "outer"):
        with use_resolver(lambda where, tree, optional: "inner"):
            assert outlay.constrain(0, "x") == "inner"
        assert outlay.constrain(0, "x") == "outer"


def test_an_error_inside_leaves_no_resolver_behind() -> None:
    with pytest.raises(RuntimeError), use_resolver(lambda where, tree, optional: "resolved"):
        raise RuntimeError
    assert outlay.constrain("untouched", "x") == "untouched"
