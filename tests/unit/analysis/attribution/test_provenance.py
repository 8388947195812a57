"""Phases, modules and source lines."""

import sysconfig
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.report.explain.programs import line_of, shape, training

import outlay
import outlay.models.classifiers
import outlay.train.step
from outlay.analysis.attribution.provenance import (
    DRIVERS,
    MACHINERY,
    is_driver,
    is_users,
    metadata_of,
    read_op_name,
    user_line,
)
from outlay.analysis.hlo.hlo_module import SourceLine
from outlay.analysis.hlo.parse import parse_hlo
from outlay.devices.build import mesh
from outlay.report.explain.explain import explain

pytestmark = pytest.mark.newest


@pytest.mark.parametrize(
    ("text", "primitive", "scopes", "phase"),
    [
        ("jit(step)/jvp(MLP)/Dense_0/dot_general", "dot_general", ("MLP", "Dense_0"), "forward"),
        ("jit(step)/transpose(jvp(MLP))/Dense_0/dot_general", "dot_general", ("MLP", "Dense_0"), "backward"),
        ("jit(step)/jvp()/while/body/jit(take)/squeeze", "squeeze", (), "forward"),
        ("jit(step)/optimizer/mul", "mul", ("optimizer",), "optimizer"),
        ("jit(f)/jit(_take)/gather", "gather", (), "other"),
        ("jit(f)/layer/bij,jk->bik/dot_general", "dot_general", ("layer",), "other"),
        # What the compiler joins has the names of all.
        ("jit(step)/(transpose(jvp(a))/dot_general:jvp()/reduce_sum)", "dot_general", ("a",), "backward"),
        ("jit(step)/(reduce_sum:transpose(jvp(a))/b/reduce_sum)", "reduce_sum", ("a", "b"), "backward"),
        ("jit(step)/transpose(jvp())/mul;jit(step)/jvp()/neg", "mul", (), "backward"),
        ("jit(step)/transpose(jvp(checkpoint(a)))/rematted_computation/tanh", "tanh", ("a",), "backward"),
    ],
)
def test_op_names(text, primitive, scopes, phase):
    source = read_op_name(text)
    assert (source.primitive, source.scopes, source.phase) == (primitive, scopes, phase)


@pytest.mark.parametrize("text", ["", "x", "state.params['w']"])
def test_an_arguments_name_is_none(text):
    assert read_op_name(text) is None


STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"]


@pytest.mark.parametrize(
    ("file", "is_theirs"),
    [
        ("/home/me/model.py", True),
        ("/home/me/outlay/model.py", True),
        # A project of somebody's that is called so, or lies in a folder that is.
        ("/home/me/outlay/train/step.py", True),
        ("/home/me/outlay/program/program.py", True),
        ("/home/me/optax/train.py", True),
        ("/home/me/site-packages/demo/model.py", True),
        ("/home/me/my site-packages/é+/model.py", True),
        (f"{Path(outlay.__file__).parent}_models/core/net.py", True),
        (f"{sysconfig.get_paths()['stdlib']}-project/model.py", True),
        (outlay.models.classifiers.__file__, True),
        (outlay.train.step.__file__, False),
        ("/usr/lib/python3.12/site-packages/flax/linen.py", False),
        ("/usr/lib/python3/dist-packages/optax/base.py", False),
        (f"{STANDARD_LIBRARY}/functools.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("C:\\me\\model.py", True),
        ("C:\\venv\\Lib\\site-packages\\flax\\linen.py", False),
    ],
)
def test_whose_source_a_file_is(file, is_theirs):
    assert is_users(file) is is_theirs


def test_the_line_of_a_user_is_the_innermost_of_theirs():
    frames = [
        SourceLine("/venv/lib/python3.12/site-packages/flax/linen.py", 10, "Dense.__call__"),
        SourceLine("/home/me/model.py", 20, "Block.__call__"),
        SourceLine("/home/me/model.py", 30, "Model.__call__"),
    ]
    assert user_line(tuple(frames)) == frames[1]


def test_what_has_a_program_compiled_is_not_the_program():
    package = outlay.train.step.__file__.removesuffix("train/step.py")
    frames = (
        SourceLine(f"{package}train/step.py", 90, "train_step.<locals>.step"),
        SourceLine(f"{package}program/program.py", 140, "Program.lowered"),
        SourceLine("/home/me/train.py", 5, "<module>"),
    )
    assert user_line(frames) is None


def test_lines_below_the_working_directory_are_relative(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (source,) = [user_line((SourceLine(str(tmp_path / "models" / "mlp.py"), 3, "f"),))]
    assert str(source) == "models/mlp.py:3"


class Attention(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(64, name="out")(jnp.tanh(x))  # in a layer of Flax


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x + Attention(name="attention")(x)


def test_the_modules_of_flax():
    on = mesh(data=8)
    params = jax.eval_shape(lambda: Block().init(jax.random.key(0), jnp.ones((2, 64))))
    params = jax.tree.map(lambda leaf: shape(*leaf.shape, on=on, spec=P("data")), params)

    def loss(params, x):
        return (Block().apply(params, x) ** 2).mean()

    explanation = explain(jax.jit(jax.grad(loss)), params, shape(4096, 64, on=on, spec=P("data")))
    (gather,) = [one for one in explanation.collectives if one.leaf == "params.params.attention.out.kernel"]
    assert (gather.module, gather.phase) == ("Block.attention.out", "forward")
    assert gather.source.line == line_of("# in a layer of Flax", __file__)
    assert "Block.attention.out" in explanation.by_module()


class Layer:
    def __call__(self, params, x):
        return jnp.tanh(x @ params["w0"]) @ params["w1"]


class Model:
    def __call__(self, params, x):
        return Layer()(params, x)


@pytest.mark.compiles
def test_classes_without_scopes():
    def loss(params, batch, keys):
        return ((Model()(params, batch["x"]) - batch["y"]) ** 2).mean(-1), {}

    gathers = [one for one in explain(training(loss=loss)).collectives if one.kind == "all-gather"]
    assert {one.module for one in gathers} == {"Model.Layer"}


UNNOTED = """HloModule m, num_partitions=2

%gathering (g: f32[4]) -> f32[8] {
  %g = f32[4]{0} parameter(0)
  ROOT %inner = f32[8]{0} all-gather(%g), dimensions={0}
}

ENTRY %main (x: f32[4]) -> f32[8] {
  %x = f32[4]{0} parameter(0)
  %made = f32[4]{0} sine(%x), metadata={op_name="made" source_file="a.py" source_line=1}
  %view = f32[4]{0} bitcast(%made)
  %gathered = f32[8]{0} all-gather(%view), dimensions={0}
  %reduced = f32[4]{0} all-reduce(%view), to_apply=%add
  %named = f32[4]{0} all-reduce(%view), to_apply=%add, metadata={op_name="own"}
  %noted = f32[4]{0} all-reduce(%view), to_apply=%add, metadata={op_name="own" source_file="a.py" source_line=2}
  %taken = f32[8]{0} cosine(%gathered), metadata={op_name="taken" source_file="a.py" source_line=3}
  %fused = f32[8]{0} fusion(%view), calls=%gathering, metadata={op_name="fused" source_file="a.py" source_line=4}
  %use = f32[4]{0} cosine(%reduced), metadata={op_name="use" source_file="a.py" source_line=5}
  %lone = f32[] constant(1)
  ROOT %sum = f32[8]{0} add(%taken, %fused)
}
"""


@pytest.mark.parametrize(
    ("computation", "name", "op_name", "lines"),
    [
        ("main", "gathered", "taken", ["a.py:3"]),
        ("main", "reduced", "made", ["a.py:1"]),
        ("main", "named", "own", ["a.py:1"]),
        ("main", "noted", "own", ["a.py:2"]),
        ("gathering", "inner", "fused", ["a.py:4"]),
        ("main", "lone", "", []),
    ],
)
def test_what_has_no_note_is_given_that_of_its_nearest_relative(computation, name, op_name, lines):
    module = parse_hlo(UNNOTED)
    instruction = module.computations[computation].instructions[name]
    name_of_op, frames = metadata_of(module, computation, instruction)
    assert (name_of_op, [str(frame) for frame in frames]) == (op_name, lines)


def test_what_is_no_part_of_a_program_is_called_as_the_files_are():
    package = Path(outlay.__file__).parent
    assert not [name for name in (*DRIVERS, *MACHINERY) if not (package / name).exists()]
    assert all(is_driver(f"{package}/{name}") for name in DRIVERS)
    assert not is_driver(str(package / "program" / "execution.py"))
