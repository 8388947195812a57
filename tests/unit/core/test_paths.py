import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outlay.core.error_types import LayoutError
from outlay.core.paths import flatten_paths, join_parts, map_with_paths, split_path

PART = st.text(alphabet=st.sampled_from(list("ab.*'\\ \n\"/~é0")), max_size=6) | st.text(max_size=4)


def paths(tree: Any) -> list[str]:
    return [path for path, _ in flatten_paths(tree)[0]]


@pytest.mark.compiles
@given(st.lists(PART, max_size=5).map(tuple))
@example(("",))
@example(("", ""))
@example(("a.b", "*", "it's", " ", "\\", "\\'", "\n"))
def test_splitting_a_path_gives_back_the_parts_it_was_joined_from(parts):
    assert split_path(join_parts(parts)) == parts


@given(st.lists(PART, min_size=1, max_size=3).map(tuple), st.lists(PART, min_size=1, max_size=3).map(tuple))
def test_different_parts_never_make_the_same_path(one, other):
    assert (join_parts(one) == join_parts(other)) == (one == other)


@given(st.recursive(st.just(0.0), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PART, inner, max_size=3)))
def test_paths_name_every_leaf_of_a_tree_once_and_in_jax_order(tree):
    all_paths = paths(tree)
    assert len(all_paths) == len(set(all_paths)) == len(jax.tree.leaves(tree))


class Pair(NamedTuple):
    kernel: float
    bias: float


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Neuron:
    potential: float
    current: float


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Box:
    value: float


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Reading:
    value: float
    error: float


def test_every_kind_of_container_has_readable_paths():
    assert paths({"layers": [Pair(1.0, 2.0), (3.0,)], "soma": Neuron(4.0, 5.0)}) == [
        "layers.0.kernel",
        "layers.0.bias",
        "layers.1.0",
        "soma.potential",
        "soma.current",
    ]


def test_keys_that_are_no_strings_are_written_as_text():
    assert paths({7: 1.0, -1: 2.0}) == ["-1", "7"]
    assert paths({(1, "a"): 1.0}) == [r"'(1, \'a\')'"]
    assert paths({1.5: 0.0}) == ["'1.5'"]


def test_a_box_with_one_value_is_transparent_but_a_value_among_siblings_is_not():
    assert paths({"w": Box(1.0)}) == ["w"]
    assert paths({"r": Reading(1.0, 2.0)}) == ["r.value", "r.error"]
    assert paths({"value": 1.0}) == ["value"]


def test_a_bare_array_has_the_empty_path_and_an_empty_tree_has_none():
    assert paths(jnp.ones(3)) == [""]
    assert paths({}) == paths([]) == paths(None) == []


def test_two_keys_that_read_the_same_are_refused_with_every_one_of_them():
    @jax.tree_util.register_pytree_with_keys_class
    class Odd:
        def tree_flatten_with_keys(self):
            key = jax.tree_util.DictKey
            return [(key(1), 1.0), (key("1"), 2.0), (key("2"), 3.0), (key(2), 4.0)], None

        def tree_flatten(self):
            return [1.0, 2.0, 3.0, 4.0], None

        @classmethod
        def tree_unflatten(cls, _, leaves):
            return cls()

    with pytest.raises(LayoutError, match=r"(?s)2 paths name more than one leaf.*odd\.1.*odd\.2.*rename one"):
        flatten_paths({"odd": Odd()})


def test_mapping_keeps_the_structure_and_hands_each_leaf_its_path():
    tree = {"a": [1.0, 2.0], "b": Neuron(3.0, 4.0)}
    named = map_with_paths(lambda path, leaf: f"{path}={leaf}", tree)
    assert named == {"a": ["a.0=1.0", "a.1=2.0"], "b": Neuron("b.potential=3.0", "b.current=4.0")}
