"""Faults planted in the text of a compiled program, one at a time: each is called different."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.devices.compilers import needs_gpu_compiler

import outlay
from outlay.analysis.hlo.parse import parse_hlo
from outlay.analysis.verify.as_compiled import compiled_proof
from outlay.analysis.verify.as_compiled.compiled_proof import CompiledProof
from outlay.analysis.verify.as_compiled.run_compiled import JudgeStoppedError, compute
from outlay.analysis.verify.static import static_proof
from outlay.core.jax_compat import text_with_constants

pytestmark = [pytest.mark.compiles, needs_gpu_compiler]


def init(key):
    table, first, second = jax.random.split(key, 3)
    return {
        "table": jax.random.normal(table, (32, 16)),
        "in": jax.random.normal(first, (16, 32)) / 4,
        "out": jax.random.normal(second, (32, 16)) / 6,
    }


def step(params, batch):
    """Two microbatches of an embedding and two products, whose gradients are added in a loop."""

    def loss(params, x, y):
        return jnp.mean((jnp.tanh(params["table"][x] @ params["in"]) @ params["out"] - y) ** 2)

    def body(total, part):
        return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(params, *part)), None

    parts = jax.tree.map(lambda leaf: leaf.reshape(2, leaf.shape[0] // 2, *leaf.shape[1:]), (batch["x"], batch["y"]))
    (value, grads), _ = jax.lax.scan(body, (0.0, jax.tree.map(jnp.zeros_like, params)), parts)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), {"loss": value / 2}


@functools.cache
def program():
    rng = np.random.default_rng(0)
    batch = {"x": rng.integers(0, 32, (16, 4)).astype(np.int32), "y": rng.normal(size=(16, 4, 16)).astype(np.float32)}
    layout = outlay.Layout([("table", P("data")), ("in", P(None, "model")), ("out", P("model"))])
    mesh = outlay.mesh(data=2, model=2, target="h100:1x4")
    return outlay.program(step, init, batch, layout=layout + outlay.data_parallel(), mesh=mesh), batch


@functools.cache
def text():
    return text_with_constants(program()[0].compiled)


def verdict(monkeypatch, changed, run=compute):
    """The proof of the program with another text, computed in this process."""

    def here(job):
        with jax.enable_x64(True):
            return run(job)

    monkeypatch.setattr(compiled_proof, "text_with_constants", lambda compiled: changed)
    monkeypatch.setattr(compiled_proof, "run_apart", here)
    monkeypatch.setattr(compiled_proof, "known_faults", tuple)
    own, batch = program()
    return CompiledProof(own, 1, None, lambda stage: None, seconds_for_passes=0).of(None, [batch])


def lines_with(opcode):
    return [line for line in text().splitlines() if f" {opcode}(" in line]


def replaced(line, pattern, other):
    changed, num = re.subn(pattern, other, line, count=1)
    assert num
    assert changed != line
    return text().replace(line, changed)


def without_sum(number):
    """The text with a sum over devices left out: its operand is copied."""
    start = lines_with("all-reduce-start")[number]
    name, operand = re.match(r"\s*(%[\w.-]+) = .* all-reduce-start\((%[\w.-]+)\)", start).groups()
    done = next(line for line in lines_with("all-reduce-done") if f"({name})" in line)
    return text().replace(done, re.sub(r"all-reduce-done\(.*", f"copy({operand})", done))


def after_a_sum(*lines):
    """The text in which more is done to what the last sum returns, whose name is RESULT.sum there."""
    done = lines_with("all-reduce-done")[-1]
    name, shape = re.match(r"\s*(%[\w.-]+) = (\S+) ", done).groups()
    low = shape.replace("f32", "bf16")
    more = [line.replace("RESULT", name).replace("SHAPE", shape).replace("LOW", low) for line in lines]
    groups = re.search(r"replica_groups=.*?, use_global", lines_with("all-reduce-start")[-1])[0]
    more = [line.replace("GROUPS", f"channel_id=99, {groups}_device_ids=true") for line in more]
    return text().replace(done, "\n".join([done.replace(f"{name} =", f"{name}.sum =", 1), *more]))


def adder():
    """The computation by which the last sum adds."""
    return re.search(r"to_apply=%([\w.-]+)", lines_with("all-reduce-start")[-1])[1]


def update_lines():
    """The lines of the entry that subtract a gradient from a parameter."""
    entry = text().partition("ENTRY")[2].splitlines()
    return [line for line in entry if re.search(r"fusion\(%param[\w.]*, %[\w.-]+\), kind=kLoop", line)]


def other_operand(line, other):
    return re.sub(r"(fusion\(%param[\w.]*, )%[\w.-]+", rf"\g<1>{other}", line)


def gradient_of_another():
    one, other = update_lines()[:2]
    return text().replace(other, other_operand(other, re.search(r"fusion\(%param[\w.]*, (%[\w.-]+)", one)[1]))


def two_results_swapped():
    root = text().partition("ENTRY")[2].strip().splitlines()[-2]
    return replaced(root, r" tuple\((%[\w.-]+), (%[\w.-]+)", r" tuple(\2, \1")


PLANTED = {
    "the first sum left out": lambda: without_sum(0),
    "the last sum left out": lambda: without_sum(-1),
    "a sum over the other axis": lambda: replaced(
        lines_with("all-reduce-start")[-1],
        r"replica_groups=.*?, use_global",
        "replica_groups={{0,2},{1,3}}, use_global",
    ),
    "a sum over all": lambda: replaced(
        lines_with("all-reduce-start")[-1], r"replica_groups=.*?, use_global", "replica_groups={{0,1,2,3}}, use_global"
    ),
    "gathered in another order": lambda: replaced(
        lines_with("all-gather-start")[0], r"replica_groups=.*?, dim", "replica_groups={{2,0},{3,1}}, dim"
    ),
    "a sum over some devices only": lambda: replaced(
        lines_with("all-reduce-start")[-1],
        r"replica_groups=.*?, use_global",
        "replica_groups={{0,1},{2},{3}}, use_global",
    ),
    "a sum taken twice": lambda: after_a_sum("  RESULT = SHAPE all-reduce(RESULT.sum), GROUPS, to_apply=%" + adder()),
    "a sum rounded to bfloat16": lambda: after_a_sum(
        "  RESULT.low = LOW convert(RESULT.sum)", "  RESULT = SHAPE convert(RESULT.low)"
    ),
    "another constant on one device": lambda: text().replace("constant({0, 0, 16, 16})", "constant({0, 0, 16, 0})"),
    "the gradient of another leaf": gradient_of_another,
    "two results swapped": two_results_swapped,
    "a scale": lambda: text().replace("constant(0.1)", "constant(0.1001)"),
    "another microbatch": lambda: text().replace(
        "slice={[1:2], [0:8], [0:4], [0:16]}", "slice={[0:1], [0:8], [0:4], [0:16]}"
    ),
    "a microbatch not added": lambda: replaced(
        next(line for line in reversed(lines_with("custom-call")) if '"beta":1' in line), '"beta":1', '"beta":0'
    ),
    "stored over another argument": lambda: re.sub(
        r"\{0\}: \(0,(.*?)\{1\}: \(1,", r"{0}: (1,\1{1}: (0,", text(), count=1
    ),
    "a stale buffer": lambda: replaced(
        text().partition("ENTRY")[2].strip().splitlines()[-2], r"tuple\(%[\w.-]+", "tuple(%param.2"
    ),
}


NAMED = {
    "the last sum left out": "sum missing over 'model': custom-call",
    "gathered in another order": "order of parts over 'data': all-gather-start",
    "a scale": "scaled: every update that differs is 1.001 times what it should be, in each entry alike; only wrong",
    "a microbatch not added": "only wrong results follow from",
    "a stale buffer": "not computed: parameter",
}


@pytest.mark.thorough  # test_planted_in_loops.py has one that is
def test_the_program_itself_is_the_same(monkeypatch):
    verification = verdict(monkeypatch, text())
    assert verification.verdict == "same", str(verification)
    assert {check.path for check in verification.checks} == {"table", "in", "out", "outputs.loss"}
    assert "operations of the compiled program were computed" in verification.limits[0]


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_in_the_text_is_called_different(monkeypatch, name):
    changed = PLANTED[name]()
    assert changed != text()
    verification = verdict(monkeypatch, changed)
    assert verification.verdict == "different"
    # Where every result is wrong and the exchanges are right, any line may be it.
    assert bool(verification.causes) == (name != "another microbatch"), verification.causes
    assert NAMED.get(name, "") in "; ".join(verification.causes)
    assert all("test_planted.py:" in cause for cause in verification.causes)


SEEN_STATICALLY = {
    "the first sum left out": ("replicas differ", "data"),
    "the last sum left out": ("sum missing", "model"),
    "a sum over the other axis": ("sum doubled", "data"),
    "a sum over all": ("sum doubled", "data"),
    "gathered in another order": ("order of parts", "data"),
    "another constant on one device": ("numbers of devices", "data"),
    "a sum over some devices only": ("numbers of devices", "model"),
    "a sum taken twice": ("sum doubled", "model"),
    "the gradient of another leaf": ("part of another", "model"),
    "two results swapped": ("part of another", "model"),
    "stored over another argument": ("memory of another", ""),
    "a stale buffer": ("not computed", ""),
}
"""What needs no numbers; the others leave every value on its devices and differ in numbers alone."""


@pytest.mark.parametrize("name", ["none", *PLANTED])
def test_faults_of_exchanges_are_found_without_computing(monkeypatch, name):
    changed = text() if name == "none" else PLANTED[name]()
    monkeypatch.setattr(static_proof, "text_with_constants", lambda compiled: changed)
    verification = outlay.verify(program()[0], static=True)
    seen = [(fault.kind, fault.axis) for fault in verification.faults]
    assert verification.verdict == ("different" if name in SEEN_STATICALLY else "no fault found"), str(verification)
    assert seen[:1] == [SEEN_STATICALLY[name]] if seen else name not in SEEN_STATICALLY
    assert all("test_planted.py" in str(fault.source) for fault in verification.faults)


def test_what_has_no_meaning_is_named_and_nothing_is_claimed(monkeypatch):
    changed = text().replace('custom_call_target="__cublas$lt$matmul"', 'custom_call_target="someones_kernel"')
    verification = verdict(monkeypatch, changed)
    assert verification.verdict == "unknown"
    assert "custom-call someones_kernel" in str(verification)
    assert "test_planted.py" in str(verification)


def test_a_judge_that_crashes_knows_nothing(monkeypatch):
    def crash(job):
        raise JudgeStoppedError("exit code -9: it said nothing")

    verification = verdict(monkeypatch, text(), run=crash)
    assert verification.verdict == "unknown"
    assert "ended without an answer (exit code -9" in str(verification)


def test_every_line_of_the_text_is_parsed():
    assert parse_hlo(text()).skipped == ()
