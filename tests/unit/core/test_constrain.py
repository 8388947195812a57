"""`constrain` outside a program gives its values back; inside, it asks the resolver of that program only."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

import outlay
from outlay.core.constrain import resolving


def test_outside_a_program_the_tree_comes_back_itself() -> None:
    tree = {"w": jnp.ones(3), "empty": None}
    assert outlay.constrain(tree, "grads") is tree


def test_inside_the_resolver_gets_the_name_and_the_tree() -> None:
    seen: list[tuple[str, Any]] = []

    def resolver(name: str, tree: Any) -> Any:
        seen.append((name, tree))
        return "resolved"

    with resolving(resolver):
        assert outlay.constrain([1, 2], "grads") == "resolved"
    assert seen == [("grads", [1, 2])]
    assert outlay.constrain("again", "grads") == "again"


def test_nested_programs_ask_the_innermost_resolver_and_give_way_again() -> None:
    with resolving(lambda name, tree: "outer"):
        with resolving(lambda name, tree: "inner"):
            assert outlay.constrain(0, "x") == "inner"
        assert outlay.constrain(0, "x") == "outer"


def test_an_error_inside_leaves_no_resolver_behind() -> None:
    with pytest.raises(RuntimeError), resolving(lambda name, tree: "resolved"):
        raise RuntimeError
    assert outlay.constrain("untouched", "x") == "untouched"
