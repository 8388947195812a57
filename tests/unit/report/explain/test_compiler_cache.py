"""Programs that an earlier call had compiled: explained again without the compiler, and as they were."""

import json

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.report.explain.programs import shape, training

from outlay.core.disk_cache import cache_folder
from outlay.core.source_owner import OUTLAY
from outlay.devices.build import mesh
from outlay.report.explain.compiler_cache import Outcome, outcome_key
from outlay.report.explain.explain import explain

SEEN = "not compiled again: the compiler's output was read from the cache"


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def facts(explanation):
    """All that is said, but for how long it took and where it is from."""
    as_dict = explanation.to_dict()
    for name in ("trace_seconds", "compile_seconds", "parse_seconds", "from_cache"):
        as_dict.pop(name)
    as_dict["notes"] = [note for note in as_dict["notes"] if not note.startswith(SEEN)]
    return json.loads(json.dumps(as_dict))


def test_the_second_call_compiles_nothing_and_says_the_same():
    explanations = [explain(training(), target="h100:1x8", cache=True) for _ in range(2)]
    again = training()
    explanations.append(explain(again, target="h100:1x8", cache=True))
    assert [one.from_cache for one in explanations] == [False, True, True]
    assert not again.is_compiled
    assert facts(explanations[0]) == facts(explanations[2])
    assert any(note.startswith(SEEN) for note in explanations[2].notes)
    assert explanations[2].compile_seconds is None
    assert explanations[2].collectives[0].source is not None
    assert "read from the cache" in explanations[2].to_html()


def test_without_being_asked_nothing_is_kept():
    explain(training())
    assert not cache_folder().exists()


def test_what_is_broken_is_compiled_again():
    first = explain(training(), cache=True)
    (entry,) = cache_folder().iterdir()
    entry.write_bytes(entry.read_bytes()[:-9])
    second = explain(training(), cache=True)
    assert not second.from_cache
    assert facts(first) == facts(second)
    assert explain(training(), cache=True).from_cache


def test_a_state_that_moves_is_found_in_what_was_kept():
    on = mesh(data=8)

    def step(state, batch):
        return jax.lax.with_sharding_constraint(state + batch.sum(), jax.NamedSharding(on, P())), batch

    arguments = shape(1024, 8, on=on, spec=P("data")), shape(8, on=on, spec=P("data"))
    first, second = (explain(jax.jit(step), *arguments, mesh=on, cache=True) for _ in range(2))
    assert second.from_cache
    assert [finding.kind for finding in first.findings if finding.kind == "state-moves"] == ["state-moves"]
    assert facts(first) == facts(second)


def lowered(function, on):
    return jax.jit(function).lower(shape(64, on=on, spec=P(on.axis_names[0])))


def test_another_program_line_option_or_mesh_has_another_key(monkeypatch):
    program = training()
    options, on = program.compiler_options, mesh(data=8)

    def sine(x):
        return jnp.sin(x)

    def key(function=sine, of=on, flags="", **changes):
        monkeypatch.setenv("LIBTPU_INIT_ARGS", flags)
        return outcome_key(lowered(function, of), options, of, **{"of_program": False, **changes})

    same = key()
    assert key() == same
    others = {
        "program": key(jnp.cos),
        "line": key(lambda x: jnp.sin(x)),
        "mesh": key(of=mesh(other=8)),
        "arguments": key(of_program=True),
        "flags": key(flags="--xla_tpu_x=1"),
    }
    assert len({same, *others.values()}) == 1 + len(others)


def test_who_explains_it_does_not_matter_and_neither_do_addresses():
    """The second stands for a step whose operations are split by functions of Python, known by their addresses."""

    class Text:
        def __init__(self, address, caller):
            self.text = f'%0 = stablehlo.custom_call @CustomSPMDPartitioning(%a) {{backend_config = "{address}"}}'
            self.lines = [
                '#loc1 = loc("/home/me/model.py":3:1 to :9)',
                f'#loc2 = loc("{OUTLAY}/cli/{caller}_command.py":{len(caller)}:1 to :9)',
                f'#loc3 = loc("{caller}"(#loc2))',
                "#loc4 = loc(callsite(#loc1 at #loc3))",
                '#loc5 = loc("jit(step)/mul"(#loc4))',
            ]

        def as_text(self, *, debug_info=False):
            return "\n".join([self.text, *self.lines]) if debug_info else self.text

    options, on = training().compiler_options, mesh(data=8)
    keys = {outcome_key(Text(*one), options, on, of_program=True) for one in ((14060, "explain"), (15070, "estimate"))}
    assert len(keys) == 1


@pytest.mark.parametrize("data", [None, [], {}, {"output": {"text": 1}, "messages": (), "failure": "", "options": {}}])
def test_what_has_another_form_is_no_outcome(data):
    assert Outcome.from_dict(data) is None
