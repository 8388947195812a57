"""Every fix that an error proposes is applied here: it ends in a plan, and takes no other leaf's place away."""

import jax
import optax
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.layout.abstract import abstract, shape
from tests.unit.layout.broken_rule_sets import BATCH, BROKEN_RULE_SETS, MESH
from tests.unit.layout.edits import NUMBER, edits

import outlay
from outlay.devices.mesh_info import MeshInfo
from outlay.layout.resolve import Resolution

ADAM = optax.adam(1e-3)


def layers(num=2):
    return [
        {
            "q": {"kernel": shape(64, 64), "bias": shape(64)},
            "up": {"kernel": shape(64, 256), "bias": shape(256)},
            "down": {"kernel": shape(256, 64), "bias": shape(64)},
        }
        for _ in range(num)
    ]


def params():
    return {"embed": shape(1000, 64), "layers": layers(), "norm": shape(64)}


def trained(params, optimizer=ADAM, name="opt_state"):
    return {"params": params, name: jax.eval_shape(optimizer.init, params)}


STACKED = {
    "layers": {
        "q": {"kernel": shape(8, 64, 64), "bias": shape(8, 64)},
        "up": {"kernel": shape(8, 64, 256)},
        "down": {"kernel": shape(8, 256, 64)},
    },
    "head": {"kernel": shape(64, 64)},
}
NETWORKS = {"actor": {"w": shape(16, 8), "b": shape(8)}, "critic": {"w": shape(16, 8), "b": shape(8)}}
GAN = {name: trained({"up": shape(64, 256), "down": shape(256, 64)}, name="slots") for name in ("gen", "disc")}
MANY = {f"a{i}": shape(1024, 64) for i in range(300)}  # 256 KiB each, 75 MiB in all
MIXED = optax.chain(optax.scale_by_factored_rms(min_dim_size_to_factor=1), optax.scale_by_adam())

DP = outlay.data_parallel()
FSDP, ZERO1 = outlay.fsdp("data", min_size=64), outlay.zero1("data", min_size=64)
MEGATRON = outlay.tensor_parallel(columns=["params.layers.*.up.*"], rows=["params.layers.*.down.kernel"])
R = outlay.Layout

CASES = {
    "moments under another name": (R([("params.**", P("data"))]) + DP, trained({"w": shape(64, 8)}, name="slots")),
    "moments, and replicate() for the rest": (
        R([("params.**.kernel", P(None, "model")), outlay.replicate()]),
        {**trained(params()), "copy": params(), "count": shape()},
    ),
    "an average": (R([("params.layers.**.kernel", P(None, "model"))]) + DP, {**trained(params()), "copy": params()}),
    "two networks with a state each": (R([("*.params.**", P("data"))]) + DP, GAN),
    "optimizers by network": (
        R([("params.actor.**", P("data")), ("params.critic.**", P("model"))]) + DP,
        {"params": NETWORKS, "opt_state": {name: jax.eval_shape(ADAM.init, net) for name, net in NETWORKS.items()}},
    ),
    "a target network": (R([("params.**", P("data"))]) + DP, {"params": NETWORKS, "target": NETWORKS["critic"]}),
    "a target network of one of two alike": (
        R([("params.critic.**", P("data"))]) + DP,
        {"params": {"actor": NETWORKS["critic"], "critic": NETWORKS["critic"]}, "target": NETWORKS["critic"]},
    ),
    "a target network that follows too much": (
        R([("params.**", P("data")), ("target.**", outlay.layout.follow("params"))]) + DP,
        {"params": NETWORKS, "target": NETWORKS["critic"]},
    ),
    "moments of which some are split otherwise": (
        R([("params.**.kernel", P(None, "model")), ("params.**", P())]) + outlay.fsdp("data", min_size=2**14) + DP,
        {"params": params(), "slots": jax.eval_shape(ADAM.init, params())},
    ),
    "Adafactor": (
        R([("params.**.kernel", P(None, "model")), ("params.**", P())]),
        trained(params(), optax.adafactor(1e-3, min_dim_size_to_factor=8)),
    ),
    "Adafactor beside Adam": (
        R([("params.**.kernel", P(None, "model")), ("params.embed", P("model")), ("params.**", P())]),
        trained(params(), MIXED),
    ),
    "fsdp, zero1": (FSDP + ZERO1 + DP, trained(params())),
    "zero1, fsdp": (ZERO1 + FSDP + DP, trained(params())),
    "fsdp, zero1, tp": (FSDP + ZERO1 + MEGATRON + DP, trained(params())),
    "tp, zero1, fsdp": (MEGATRON + ZERO1 + FSDP + DP, trained(params())),
    "zero1, tp, fsdp": (ZERO1 + MEGATRON + FSDP + DP, trained(params())),
    "fsdp before particular rules": (
        FSDP + R([("params.layers.**.kernel", P(None, "data"))]) + DP,
        trained(params()),
    ),
    "replicate before": (R([("params.**", outlay.replicate()), ("params.embed", P("model"))]) + DP, trained(params())),
    "two closed": (
        R([("params.embed", outlay.replicate()), ("params.embed", P("model"))]) + FSDP + DP,
        trained(params()),
    ),
    "stacked layers by rules": (
        R([("params.layers.down.kernel", P("model", None)), ("params.layers.up.kernel", P(None, None, "model"))]) + DP,
        trained(STACKED),
    ),
    "stacked layers by a general rule": (R([("params.**.kernel", P("model", None))]) + DP, trained(STACKED)),
    "stacked layers by strategy": (
        outlay.tensor_parallel(columns=["params.layers.**"], outputs=0) + DP,
        trained(STACKED),
    ),
    "many small leaves": (R([("params.a0", P("data"))]) + DP, {"params": MANY}),
    "one big leaf": (R([("params.a", P("data"))]) + DP, {"params": {"a": shape(64), "b": shape(4096, 4096)}}),
    "an axis of one device": (
        R([("params.a", P("data")), ("params.**", P("one"))]) + DP,
        {"params": {"a": shape(64), "b": shape(4096, 4096)}},
    ),
    "a regular expression": (R([(r"params.layers.[0-9]+.(up|q).kernel", P("model"))]) + DP, trained(params())),
    "a key path": (R([("params/layers/0/up/kernel", P("model"))]) + DP, trained(params())),
    "a scalar among them": (R([("**", P("data"))]), {"w": shape(8), "count": shape()}),
    "an uneven batch": (DP, {"w": shape(8)}, {"x": shape(30, 7)}),
    "no rule for some": (R([("params.embed", P("model"))]), {"params": params()}),
    **{
        broken.name: (eval(broken.written, {"outlay": outlay, "P": P}), broken.state, BATCH)
        for broken in BROKEN_RULE_SETS
    },
}


def before(rules, state, batch, mesh):
    """Bytes of a device for each leaf under rules that are refused."""
    shapes = {path: (leaf.shape, leaf.dtype) for path, leaf in planned(outlay.replicate(), state, batch, mesh).items()}
    kinds = {
        "state": {path: shape for path, shape in shapes.items() if not path.startswith("batch")},
        "batch": {path: shape for path, shape in shapes.items() if path.startswith("batch")},
        "intermediate": {},
    }
    resolution = Resolution(rules, MeshInfo.of(mesh), kinds)
    return {leaf.path: leaf.bytes_per_device for leaf in resolution.leaf_plans()}


def planned(layout, state, batch, mesh):
    rest = R([layout, ("batch.**", outlay.replicate())]) if batch is not None else R([layout])
    return {leaf.path: leaf for leaf in rest.plan(state, mesh, batch=batch)}


def ends_well(rules, state, batch, mesh, trail=()):
    """The plan at the end of the advice, taking the first option of each fix from here on."""
    assert len(trail) < 30, f"the advice goes in circles: {trail}"
    try:
        return outlay.Layout(rules).plan(state, mesh, batch=batch)
    except outlay.errors.LayoutError as error:
        problem = error.problems[0]
    option, edited = next(edits(problem, rules), ("", None))
    assert edited is not None, f"no way out of {problem.text()} after {trail}"
    return ends_well(edited, state, batch, mesh, (*trail, option))


@pytest.mark.parametrize("name", CASES)
def test_every_fix_leads_to_a_plan_and_unshards_no_other_leaf(name):
    layout, state, *batch = CASES[name]
    batch = batch[0] if batch else None
    mesh = abstract(data=4, model=2, one=1) if name == "an axis of one device" else MESH
    rules = list(layout.rules)
    with pytest.raises(outlay.errors.LayoutError) as error:
        layout.plan(state, mesh, batch=batch)
    lacks_axis = any(p.kind == "unknown axis" for p in error.value.problems)
    held = {} if lacks_axis else before(rules, state, batch, mesh)
    asked = own_leaves(error.value.problems, rules, held)
    num_applied = 0
    for problem in error.value.problems:
        for option, edited in edits(problem, rules):
            plan = ends_well(edited, state, batch, mesh, (option,))
            num_applied += 1
            worse = [leaf.path for leaf in plan if leaf.bytes_per_device > held.get(leaf.path, leaf.bytes_per_device)]
            assert not [path for path in worse if not path.endswith(asked)], f"{option!r} unshards {worse}"
    assert num_applied


def own_leaves(problems, rules, paths):
    """Endings of the leaves that rules in the shadow of others would place, were they obeyed, and of their moments."""
    shadowed = [rules[int(at[1]) - 1] for p in problems if "shadowed" in p.kind and (at := NUMBER.match(p.where))]
    matched = [
        path for path in paths for rule in shadowed if rule.matches(path, "state") and path.startswith("params.")
    ]
    return tuple(path.removeprefix("params") for path in matched)
