import inspect
import typing

import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.layout.abstract import abstract, shape

import outlay
from outlay.layout.read_layout import ARGUMENT_FORMS, LayoutFile, read_layout_file, strategies


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Read a layout from text, in a file called layout.toml."""

    def read_text(text: str) -> outlay.Layout:
        (tmp_path / "layout.toml").write_text(text)
        return outlay.layout.read_layout("layout.toml")

    monkeypatch.chdir(tmp_path)
    return read_text


def problems_of(error: pytest.ExceptionInfo[outlay.errors.LayoutError]) -> list[tuple[str, str]]:
    return [(problem.kind, problem.where) for problem in error.value.problems]


def test_every_placement_reads_as_the_rule_in_python(read):
    layout = read("""
        [[rule]]
        match = "params.**.kernel"
        spec = ["-", "model"]
        otherwise = "another_dim"
        [[rule]]
        match = "params.embed"
        spec = [["data", "model"]]
        optional = true
        [[rule]]
        match = "params.**.bias"
        replicate = true
        [[rule]]
        match = "A.**"
        on = [2, 3]
        [[rule]]
        match = "ema.**"
        follow = "params"
    """)
    assert layout == outlay.Layout(
        [
            outlay.Rule("params.**.kernel", P(None, "model"), otherwise="another_dim"),
            outlay.Rule("params.embed", P(("data", "model")), optional=True),
            ("params.**.bias", outlay.replicate()),
            ("A.**", outlay.layout.on([2, 3])),
            ("ema.**", outlay.layout.follow("params")),
        ]
    )


def test_strategies_stand_among_rules_in_the_order_of_the_file(read):
    layout = read("""
        [[rule]]
        strategy = "tensor_parallel"
        axis = "model"
        columns = ["**.up.*"]
        rows = ["**.down.kernel"]
        [[rule]]
        match = "step"
        replicate = true
        [[rule]]
        strategy = "fsdp"
        axis = "data"
        min_size = 16
        otherwise = "replicate"
        [[rule]]
        strategy = "by_module"
        devices = { a = 2, 'b.c' = [3, 4] }
        [[rule]]
        strategy = "data_parallel"
    """)
    assert layout == (
        outlay.tensor_parallel("model", columns=["**.up.*"], rows=["**.down.kernel"])
        + outlay.Layout([("step", outlay.replicate())])
        + outlay.fsdp("data", min_size=16, otherwise="replicate")
        + outlay.by_module({"a": 2, "b.c": [3, 4]})
        + outlay.data_parallel()
    )


@pytest.mark.parametrize("strategy", strategies().values(), ids=strategies())
def test_every_parameter_of_every_strategy_can_be_checked_in_a_file(strategy):
    types = typing.get_type_hints(strategy)
    assert {types[name] for name in inspect.signature(strategy).parameters} <= set(ARGUMENT_FORMS)


def test_an_unknown_key_is_named_with_its_line_and_what_was_meant(read):
    text = '# a comment\n[[rule]]\nmatch = "a"\nreplicate = true\n\n[[rule]]\nmatch = "b"\nspce = ["x"]\n'
    with pytest.raises(outlay.errors.LayoutError, match=r"layout\.toml:8\n.*'spce'\n.*did you mean 'spec'"):
        read(text)


def test_an_unknown_argument_of_a_strategy_is_named_with_what_was_meant(read):
    text = '[[rule]]\nstrategy = "fsdp"\naxis = "data"\nminsize = 3\n'
    with pytest.raises(
        outlay.errors.LayoutError, match=r"layout\.toml:4\n.*'fsdp' does not take 'minsize'\n.*'min_size'"
    ):
        read(text)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('spec = "model"', "spec takes a list with one entry a dim"),
        ("spec = [1]", "spec takes a list with one entry a dim"),
        ("replicate = false", "replicate takes true"),
        ("on = 2", r"on takes a list of positions in the mesh, such as \[2\]"),
        ("on = [true]", "on takes a list of positions"),
        ("follow = 3", "follow takes the path of what to follow"),
        ('spec = ["", "model"]', "spec takes a list with one entry a dim"),
        ("replicate = true\notherwise = 3", 'otherwise takes one of "error"'),
        ("replicate = true\noptional = 1", "optional takes true or false"),
    ],
)
def test_a_value_of_the_wrong_type_is_shown_with_what_the_key_takes(read, line, words):
    with pytest.raises(outlay.errors.LayoutError, match=rf"wrong type: layout\.toml:\d\n.*\n.*fix: {words}") as error:
        read(f'[[rule]]\nmatch = "a"\n{line}\n')
    assert problems_of(error) == [("wrong type", f"layout.toml:{3 + line.count(chr(10))}")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('min_size = "big"', "a whole number"),
        ("min_size = true", "a whole number"),
        ("axis = 3", "an axis, or a list of several"),
        ('axis = ["data", 3]', "an axis, or a list of several"),
        ('otherwise = "never"', "one of 'error', 'replicate', 'another_dim'"),
    ],
)
def test_a_strategy_argument_of_the_wrong_type_is_shown_with_what_it_takes(read, line, words):
    with pytest.raises(
        outlay.errors.LayoutError, match=rf"wrong type: layout\.toml:3\n.*not valid for fsdp\n.*takes {words}"
    ):
        read(f'[[rule]]\nstrategy = "fsdp"\n{line}\n')


def test_module_devices_of_the_wrong_type_are_shown(read):
    with pytest.raises(outlay.errors.LayoutError, match=r"layout\.toml:3\n.*by_module\n.*a table of module paths"):
        read('[[rule]]\nstrategy = "by_module"\ndevices = { a = "two" }\n')


def test_module_devices_may_be_a_table_of_their_own(read):
    layout = read('[[rule]]\nstrategy = "by_module"\n[rule.devices]\na = 2\n')
    assert layout == outlay.by_module({"a": 2})
    with pytest.raises(outlay.errors.LayoutError, match=r"layout\.toml:3"):
        read('[[rule]]\nstrategy = "by_module"\n[rule.devices]\na = "two"\n')


def test_a_missing_argument_of_a_strategy_is_asked_for(read):
    with pytest.raises(outlay.errors.LayoutError, match=r"layout\.toml:1\n.*needs 'devices'\n.*add devices: a table"):
        read('[[rule]]\nstrategy = "by_module"\n')


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('strategy = "fdsp"', r"unknown strategy: layout\.toml:3\n.*'fdsp'\n.*mean 'fsdp'"),
        ('strategy = "replicate"', r'write match = "\*\*" and replicate = true'),
        ("strategy = 3", "there is no strategy 3"),
        ('strategy = "fsdp"\nmatch = "a"', r"layout\.toml:4\n.*'fsdp' does not take 'match'"),
        ('spec = ["data"]', r"missing match: layout\.toml:2\n.*which leaves it is for\n.*add match"),
        ('match = "a"', r"no placement: layout\.toml:2\n.*where the leaves live\n.*add one of spec"),
        (
            'match = "a"\nspec = ["x"]\nreplicate = true',
            r"two placements: layout\.toml:5\n.*2 placements: spec, replicate\n.*keep one",
        ),
        ('match = "a..b"\nreplicate = true', r"malformed pattern: layout\.toml:2 'a\.\.b'"),
        ('match = "a"\nspec = ["x", "x"]', r"one axis twice: layout\.toml:2 a\n.*'x' appears 2 times"),
        ('match = "a"\nreplicate = true\notherwise = "pad"', r"unknown fallback: layout\.toml:2 a\n.*'pad'"),
        ('match = "a"\non = [2, 2]', r"not a placement: layout\.toml:2 on\(2, 2\)"),
    ],
)
def test_what_a_rule_refuses_is_located_in_the_file(read, body, message):
    with pytest.raises(outlay.errors.LayoutError, match=message):
        read(f"\n[[rule]]\n{body}\n")


def test_broken_syntax_is_located_by_line_and_column(read):
    with pytest.raises(outlay.errors.LayoutError, match=r"not TOML: layout\.toml:3:6\n"):
        read('[[rule]]\nmatch = "a"\nspec ["x"]\n')
    with pytest.raises(outlay.errors.LayoutError, match=r"not TOML: layout\.toml, at its end"):
        read('[[rule]]\nmatch = """a')


def test_a_missing_file_and_a_folder_are_named(read, tmp_path):
    with pytest.raises(outlay.errors.LayoutError, match=r"unreadable file: nowhere\.toml\n.*No such file"):
        outlay.layout.read_layout("nowhere.toml")
    with pytest.raises(outlay.errors.LayoutError, match="Is a directory"):
        outlay.layout.read_layout(tmp_path)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "layout.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(outlay.errors.LayoutError, match="not UTF-8 text"):
        outlay.layout.read_layout(tmp_path / "layout.toml")


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "rule = []\n"])
def test_a_file_without_rules_is_refused(read, text):
    with pytest.raises(outlay.errors.LayoutError, match=r"no rules: layout\.toml\n.*no \[\[rule\]\]\n.*write one"):
        read(text)


def test_what_is_no_rule_table_is_located(read):
    with pytest.raises(outlay.errors.LayoutError, match=r"unknown key: layout\.toml:2\n.*'rules'.*\n.*mean 'rule'"):
        read('\n[[rules]]\nmatch = "a"\n')
    with pytest.raises(outlay.errors.LayoutError, match=r"wrong type: layout\.toml:1\n.*\n.*two brackets"):
        read('[rule]\nmatch = "a"\n')


def test_rules_written_inline_are_counted_where_they_have_no_line(read):
    with pytest.raises(outlay.errors.LayoutError, match=r"layout\.toml \(rule 2\)"):
        read('rule = [{ match = "a", replicate = true }, { match = "b", on = "x" }]')


def test_a_file_may_name_its_mesh(read):
    layout = read('mesh = "data=4,model=2"\n[[rule]]\nmatch = "**"\nreplicate = true\n')
    assert read_layout_file("layout.toml") == LayoutFile(layout, "data=4,model=2")


def test_a_file_need_not_name_a_mesh(read):
    read('[[rule]]\nmatch = "**"\nreplicate = true\n')
    assert read_layout_file("layout.toml").mesh is None


@pytest.mark.parametrize(
    ("line", "kind", "words"),
    [
        ("mesh = 8", "wrong type", "mesh = 8 is not text"),
        ('mesh = "data:4"', "not a mesh", "'data:4' has no size"),
        ('mehs = "data=4"', "unknown key", "did you mean 'mesh'"),
    ],
)
def test_a_mesh_that_is_none_is_located(read, line, kind, words):
    with pytest.raises(outlay.errors.LayoutError, match=rf"(?s){kind}: layout\.toml:2\n.*{words}"):
        read(f'# for a node\n{line}\n[[rule]]\nmatch = "**"\nreplicate = true\n')


def test_all_offenders_of_a_file_are_listed_at_once(read):
    with pytest.raises(outlay.errors.LayoutError, match=r"not a usable layout: 5 problems") as error:
        read("""[[rule]]
match = 3
sepc = ["data"]
replicate = "yes"

[[rule]]
strategy = "fsdp"
axis = 7

[[rule]]
match = "."
replicate = true
""")
    assert problems_of(error) == [
        ("wrong type", "layout.toml:2"),
        ("unknown key", "layout.toml:3"),
        ("wrong type", "layout.toml:4"),
        ("wrong type", "layout.toml:8"),
        ("malformed pattern", "layout.toml:10 '.'"),
    ]


def test_a_strategys_argument_that_it_refuses_is_shown_with_its_line(read):
    with pytest.raises(
        outlay.errors.LayoutError, match=r"not an outputs dim: layout\.toml:3\n.*outputs=7.*\n.*outputs=-1 for"
    ):
        read('[[rule]]\nstrategy = "tensor_parallel"\noutputs = 7\n')


def test_an_error_of_the_plan_names_a_rule_by_its_line_and_its_place_among_those_that_were_written(read):
    layout = read(
        '[[rule]]\nstrategy = "data_parallel"\n\n[[rule]]\nmatch = "params.up"\nspec = ["data"]\n\n'
        '[[rule]]\nstrategy = "fsdp"\npattern = "params.dwon"\n'
    )
    with pytest.raises(outlay.errors.LayoutError) as error:
        layout.plan({"params": {"up": shape(7)}}, abstract(data=4), batch=shape(8))
    uneven, typo = error.value.problems
    assert typo.where.startswith('layout.toml:8, [[rule]] 3 (fsdp) ("params.dwon", ')
    assert "asked by rule (\"params.up\", P('data',)) of layout.toml:4, [[rule]] 2" in uneven.what


def test_a_file_without_end_is_refused():
    with pytest.raises(outlay.errors.LayoutError, match="it is a device, not a regular file"):
        outlay.layout.read_layout("/dev/zero")


def test_a_file_of_too_many_rules_is_refused_before_it_is_parsed(tmp_path):
    file = tmp_path / "many.toml"
    file.write_text('[[rule]]\nmatch = "params.**.kernel"\nspec = ["-", "data"]\n' * 20_000)
    with pytest.raises(outlay.errors.LayoutError, match=r"many.toml\n.*20,000 rules in .* characters; at most 10,000"):
        outlay.layout.read_layout(file)
    inline = ", ".join(60_000 * ['{match = "params.**.kernel", replicate = true}'])
    file.write_text(f"rule = [{inline}]\n")
    with pytest.raises(outlay.errors.LayoutError, match=r"too many rules"):
        outlay.layout.read_layout(file)
