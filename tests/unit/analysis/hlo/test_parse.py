import pytest

from outlay.analysis.hlo.hlo_module import Shape
from outlay.analysis.hlo.parse import parse_hlo
from outlay.core.error_types import ExplainError

# One of everything that the text of some version or compiler has.
TEXT = r"""HloModule jit_step, is_scheduled=true, input_output_alias={ {0}: (1, {}, may-alias), {1, 2}: (0, {0}, must-alias) }, entry_computation_layout={(f32[8]{0})->(f32[8]{0})}, replica_count=2, num_partitions=4, frontend_attributes={a="num_partitions=9, {"}

FileNames
1 "train \"it\".py"
2 "model.py"

FunctionNames
1 "main"
2 "Layer.__call__"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=2 end_column=9}
2 {file_name_id=2 function_name_id=2 line=31 end_line=33 column=4 end_column=30}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}


%body.1 (param: (s32[], f32[<=8,4])) -> (s32[], f32[<=8,4]) {
  ROOT %param = (s32[], f32[<=8,4]{1,0:T(8,128)S(1)}) parameter(0)
}, execution_thread="main"

named_only {
  a.1 = f32[2,3]{1,0} parameter(0), sharding={devices=[1,2]<=[2]}
  b.1 = f32[2,3]{1,0} add(f32[2,3]{1,0} a.1, f32[2,3]{1,0} a.1)
  ROOT c = f32[2,3]{1,0} subtract(a.1, b.1)
}

ENTRY %main.9 (x: f32[8], y: f32[8]) -> (f32[8]) {
  %x = f32[8]{0} parameter(1), metadata={op_name="state[\'a\'].w{1}, metadata={" stack_frame_id=2}
  %eight = s32[] constant(8), metadata={op_name="jit(step)/eight" source_file="old.py" source_line=12}
  %table = s4[2,2]{1,0:E(4)} constant({ { 1, 2 }, { 3, 4 } })
  %text = f32[] constant(-inf)
  %big = ((f32[2]{0}, /*index=1*/(bf16[]{:T(256)}, token[])), pred[4]{0:T(1024)(128)(4,1)}) custom-call(f32[8]{0} %x, /*index=1*/(s32[], (f32[])) %eight), custom_call_target="f(\"a\", {b", api_version=API_VERSION_STATUS_RETURNING, backend_config={"a":{"b":"}"},"c":[1,2]}
  %none = () tuple()
  %g = f32[8]{0} all-reduce(%x), channel_id=3, replica_groups=mesh['d'=2,'m'=4] {'d'}, use_global_device_ids=true, to_apply=%add, control-predecessors={%eight, %table}
  ROOT %out = (f32[8]{0}) tuple(%g)
}
"""  # noqa: E501


@pytest.fixture(scope="module")
def module():
    return parse_hlo(TEXT)


def test_head(module):
    assert module.name == "jit_step"
    assert module.is_scheduled
    assert (module.num_partitions, module.num_replicas, module.num_devices) == (4, 2, 8)
    assert module.input_output_alias == (((0,), 1), ((1, 2), 0))
    assert module.entry == "main.9"
    assert list(module.computations) == ["body.1", "named_only", "main.9"]
    assert module.skipped == ()


def test_names_and_operands_with_and_without_percent_signs_and_types(module):
    named_only = module.computations["named_only"].instructions
    assert named_only["b.1"].operands == ("a.1", "a.1")
    assert named_only["c"].operands == ("a.1", "b.1")
    assert named_only["c"].is_root
    assert not named_only["b.1"].is_root
    entry = module.computations["main.9"].instructions
    assert entry["big"].operands == ("x", "eight")
    assert entry["none"].operands == ()
    assert module.computations["main.9"].root is entry["out"]


def test_shapes(module):
    entry = module.computations["main.9"].instructions
    assert entry["big"].shapes == (Shape("f32", (2,)), Shape("bf16", ()), Shape("token", ()), Shape("pred", (4,)))
    assert entry["none"].shapes == ()
    assert entry["table"].shapes == (Shape("s4", (2, 2)),)
    assert module.computations["body.1"].root.shapes == (Shape("s32", ()), Shape("f32", (8, 4), is_on_chip=True))


def test_values_of_constants_and_parameters(module):
    entry = module.computations["main.9"].instructions
    assert entry["eight"].value == "8"
    assert entry["text"].value == "-inf"
    assert entry["table"].value == "{ { 1, 2 }, { 3, 4 } }"
    assert entry["x"].value == "1"
    assert entry["x"].operands == ()


def test_attributes(module):
    entry = module.computations["main.9"].instructions
    assert entry["big"].attributes["custom_call_target"] == r'"f(\"a\", {b"'
    assert entry["big"].attributes["api_version"] == "API_VERSION_STATUS_RETURNING"
    assert entry["big"].attributes["backend_config"] == '{"a":{"b":"}"},"c":[1,2]}'
    assert dict(entry["g"].attributes) == {
        "channel_id": "3",
        "replica_groups": "mesh['d'=2,'m'=4] {'d'}",
        "use_global_device_ids": "true",
        "to_apply": "%add",
        "control-predecessors": "{%eight, %table}",
    }
    assert "replica" not in entry["g"].attributes
    assert entry["none"].attributes.get("channel_id") is None


def test_op_names_and_source_lines(module):
    entry = module.computations["main.9"].instructions
    assert entry["x"].op_name == "state['a'].w{1}, metadata={"
    assert [str(frame) for frame in entry["x"].frames] == ["model.py:31", 'train "it".py:7']
    assert [frame.function for frame in entry["x"].frames] == ["Layer.__call__", "main"]
    assert entry["eight"].op_name == "jit(step)/eight"
    assert [str(frame) for frame in entry["eight"].frames] == ["old.py:12"]
    assert entry["g"].frames == ()


def test_parents_printed_without_the_surplus_are_read_too():
    text = TEXT.replace("parent_frame_id=1}", "parent_frame_id=0}").replace("parent_frame_id=2}", "parent_frame_id=1}")
    frames = parse_hlo(text).computations["main.9"].instructions["x"].frames
    assert [str(frame) for frame in frames] == ["model.py:31", 'train "it".py:7']


def test_odd_lines_are_kept_with_their_numbers():
    lines = TEXT.splitlines()
    at = next(number for number, line in enumerate(lines) if "eight = " in line)
    lines[at] = "  %eight = something new"
    lines.append("what is this")
    module = parse_hlo("\n".join(lines))
    assert module.skipped == ((at + 1, "  %eight = something new"), (len(lines), "what is this"))
    assert "table" in module.computations["main.9"].instructions


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "it is empty"),
        ("hello\nworld", "starts with 'hello'.*as_text"),
        ("module @jit_f {\n}", "StableHLO"),
    ],
)
def test_other_text_than_hlo_is_refused(text, match):
    with pytest.raises(ExplainError, match=match):
        parse_hlo(text)


def test_log_lines_before_the_module_do_not_matter():
    assert parse_hlo("compiling...\n" + TEXT).name == "jit_step"


def test_an_instruction_that_metadata_breaks_over_lines_is_one():
    """As the TPU compiler writes Pallas kernels; what follows is read too."""
    module = parse_hlo(
        "HloModule m\n\nENTRY %main (x: f32[4]) -> f32[4] {\n"
        "  %x = f32[4]{0} parameter(0)\n"
        '  %k = f32[4]{0} custom-call(%x), custom_call_target="tpu", frontend_attributes={kernel_metadata={\n'
        '"xprof_metadata":"{}"\n'
        '}}, backend_config={"custom_call_config": {"cost_estimate": {"flops": "8"}}}\n'
        "  ROOT %y = f32[4]{0} negate(%k)\n}\n"
    )
    instructions = module.computations["main"].instructions
    assert list(instructions) == ["x", "k", "y"]
    assert '"flops": "8"' in instructions["k"].attributes["backend_config"]
    assert module.skipped == ()


def test_a_text_that_was_cut_short_says_where_it_ends():
    assert parse_hlo(TEXT).cut_in == ""
    end = TEXT.rindex("}")
    assert parse_hlo(TEXT[:end]).cut_in == "inside of computation main.9"
    before_entry = TEXT[: TEXT.index("ENTRY")]
    assert parse_hlo(before_entry).cut_in == "before ENTRY, the computation that runs first"
