import contextlib
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.core.error_types import MeshError
from outlay.devices.mesh_spec import MeshSpec

names = st.from_regex(r"[a-z_][a-z0-9_]{0,7}", fullmatch=True)
sizes = st.dictionaries(names, st.integers(1, 4096), min_size=1, max_size=5)


@st.composite
def specs(draw):
    axes = draw(sizes)
    if draw(st.booleans()):
        axes[draw(st.sampled_from(sorted(axes)))] = -1
    over = draw(st.dictionaries(st.sampled_from(sorted(axes)), st.sampled_from(["hosts", "host"])))
    return MeshSpec(axes, over)


@pytest.mark.compiles
@given(spec=specs())
def test_the_text_of_a_spec_reads_back_as_the_spec(spec):
    assert MeshSpec.parse(str(spec)) == spec


@pytest.mark.compiles
@given(spec=specs(), blank=st.sampled_from(["", " ", "\t", "  "]))
def test_blanks_around_the_parts_do_not_matter(spec, blank):
    spaced = re.sub(r"([=,@])", rf"{blank}\1{blank}", str(spec))
    assert MeshSpec.parse(blank + spaced + blank) == spec


@given(text=st.text(string.printable, max_size=30))
def test_any_text_gives_a_spec_or_a_mesh_error(text):
    with contextlib.suppress(MeshError):
        assert MeshSpec.parse(text).axes


@pytest.mark.parametrize(
    ("text", "what", "column"),
    [
        ("", "an axis is missing here", 0),
        ("data=4,,model=2", "an axis is missing here", 7),
        ("data=4,", "an axis is missing here", 7),
        ("data=4, model", "'model' has no size: write model=4", 8),
        ("data=4,2x=2", "axis name '2x' must be letters, digits and _", 7),
        ("=4", "axis name '' must be letters, digits and _", 0),
        ("data=4,model=x", "size of 'model' must be a whole number or -1, not 'x'", 13),
        ("data=4,model= 0", "size of 'model' must be at least 1, or -1", 14),
        ("data=-2", "size of 'data' must be a whole number or -1, not '-2'", 5),
        ("data=4,model=2,data=2", "axis 'data' is given twice", 15),
        ("data=-1,model=-1", "only one size can be -1", 8),
        ("data=4@hots", "'data' must run over 'hosts' .* or inside one 'host', not 'hots'", 7),
    ],
)
def test_a_text_that_does_not_parse_is_shown_with_a_mark_at_the_place(text, what, column):
    with pytest.raises(MeshError, match=what) as caught:
        MeshSpec.parse(text)
    assert str(caught.value).splitlines()[1:] == [f"  {text}", f"  {' ' * column}^"]


def test_characters_that_would_move_the_mark_are_replaced():
    with pytest.raises(MeshError, match="a whole number or -1") as caught:
        MeshSpec.parse("data\n=x")
    assert str(caught.value).splitlines()[1:] == ["  data?=x", "  " + " " * 6 + "^"]
