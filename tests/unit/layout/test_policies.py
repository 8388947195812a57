import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.layout.abstract import abstract, shape

import outlay
from outlay.devices.mesh_info import MeshInfo

MESH = abstract(data=4, model=2)


def plan(placement, *dims, before=(), **rule_options):
    return outlay.Layout([*before, outlay.Rule("w", placement, **rule_options)]).plan({"w": shape(*dims)}, MESH)["w"]


def test_a_users_policy_may_return_a_spec():
    leaf = plan(lambda leaf: P(None, "model"), 8, 16)
    assert leaf.spec == P(None, "model")
    assert leaf.reason == "chosen by the policy"


def test_a_users_policy_may_give_its_reason():
    leaf = plan(lambda leaf: outlay.layout.Choice(P("data"), f"{leaf.shape[0]} rows are many"), 8, 16)
    assert (leaf.spec, leaf.reason) == (P("data", None), "8 rows are many")


def test_a_policy_sees_the_leaf_and_what_earlier_rules_left_free():
    seen = []

    def policy(leaf):
        seen.append(leaf)
        return P()

    plan(policy, 8, 16, before=[("w", P("data"))])
    assert seen == [outlay.layout.LeafView("w", (8, 16), "float32", (1,), {"model": 2})]


def test_a_policy_that_forgets_to_return_is_told_what_to_return():
    with pytest.raises(
        outlay.errors.LayoutError,
        match=r"not a placement: w\n.*returned None\n.*return a PartitionSpec or outlay\.layout\.Choice",
    ):
        plan(lambda leaf: None, 8)


def test_a_policy_that_claims_an_axis_the_mesh_lacks_is_told_what_was_meant():
    with pytest.raises(outlay.errors.LayoutError, match=r"unknown axis: w\n.*'modle', which the mesh lacks\n.*'model'"):
        plan(lambda leaf: P("modle"), 8)


def test_a_policy_that_claims_an_axis_twice_is_refused():
    with pytest.raises(outlay.errors.LayoutError, match=r"one axis twice: w\n.*'data' appears 2 times"):
        plan(lambda leaf: P("data", "data"), 8, 8)


def test_a_policy_that_returns_too_many_dims_is_refused():
    with pytest.raises(
        outlay.errors.LayoutError, match=r"too many dims: w\n.*has 2 entries, but the leaf has 1 dim: \(8,\)"
    ):
        plan(lambda leaf: P(None, "data"), 8)


def test_a_policys_indivisible_dim_is_refused_or_falls_back_like_any_rules():
    with pytest.raises(outlay.errors.LayoutError, match=r"indivisible dim: w\n.*6 = 1 x 4 \+ 2"):
        plan(lambda leaf: P("data"), 6, 16)
    assert plan(lambda leaf: P("data"), 6, 16, otherwise="another_dim").spec == P(None, "data")


def test_fsdp_splits_the_largest_dim_that_divides():
    fsdp = outlay.fsdp(min_size=1).rules[0].placement
    assert plan(fsdp, 8, 16, 12).spec == P(None, "data", None)
    assert plan(fsdp, 8, 18, 8).spec == P("data", None, None)  # 18 does not divide; the first of equals


def test_fsdp_leaves_small_leaves_whole_and_says_so():
    leaf = plan(outlay.fsdp(min_size=129).rules[0].placement, 8, 16)
    assert (leaf.spec, leaf.reason) == (P(), "128 elements < min_size 129: not worth splitting")
    assert plan(outlay.fsdp(min_size=128).rules[0].placement, 8, 16).spec == P(None, "data")


def test_fsdp_with_no_dim_that_divides_names_the_ways_out():
    with pytest.raises(
        outlay.errors.LayoutError,
        match=r"(?s)no dim of \(7, 9\) is divisible by data=4.*pad dim 0 to 8 or dim 1 to 12"
        r'.*otherwise="replicate": 252 B a device.*\("w", outlay\.replicate\(\)\)',
    ):
        plan(outlay.fsdp(min_size=1).rules[0].placement, 7, 9)


def test_fsdp_may_keep_what_does_not_divide_whole():
    leaf = plan(outlay.fsdp(min_size=1).rules[0].placement, 7, 9, otherwise="replicate")
    assert leaf.spec == P()
    assert "kept whole as rule 1 allows, 252 B a device" in leaf.reason


def test_fsdp_takes_the_dim_that_tensor_parallelism_left():
    layout = outlay.tensor_parallel("model") + outlay.fsdp("data", min_size=1)
    assert layout.plan({"w": shape(4, 16)}, MESH)["w"].spec == P("data", "model")


def test_tensor_parallel_counts_outputs_from_either_end():
    state = {"up": {"w": shape(4, 8), "b": shape(8)}, "down": {"w": shape(8, 4), "b": shape(4)}}
    flax = outlay.tensor_parallel(columns=["up.*"], rows=["down.w"]) + outlay.replicate()
    assert [leaf.spec for leaf in flax.plan(state, MESH)] == [P(), P("model", None), P("model"), P(None, "model")]
    torch = outlay.tensor_parallel(columns=["up.*"], rows=["down.w"], outputs=0) + outlay.replicate()
    assert [leaf.spec for leaf in torch.plan(state, MESH)] == [P(), P(None, "model"), P("model"), P("model", None)]


def test_hsdp_splits_state_inside_a_host_and_samples_over_all_devices():
    mesh = simulated_hosts((0, 0, 0, 0, 1, 1, 1, 1), data=2, fsdp=4)
    plan = outlay.layout.hsdp(min_size=1).plan({"w": shape(4, 16)}, mesh, batch={"x": shape(8, 3), "step": shape()})
    assert {leaf.path: leaf.spec for leaf in plan} == {
        "w": P(None, "fsdp"),
        "batch.x": P(("data", "fsdp"), None),
        "batch.step": P(),
    }
    assert plan["w"].num_copies == 2


def test_hsdp_refuses_a_mesh_whose_inner_axis_crosses_hosts_and_says_the_size_that_does_not():
    crossing = simulated_hosts((0, 0, 1, 1, 2, 2, 3, 3), data=2, fsdp=4)
    expected = r"(?s)crosses hosts: rule 2 .* of hsdp\n.*its 4 devices are on 2\n.*data=-1,fsdp=2@host"
    with pytest.raises(outlay.errors.LayoutError, match=expected):
        outlay.layout.hsdp().plan({"w": shape(4, 16)}, crossing)
    outlay.fsdp("fsdp", min_size=1).plan({"w": shape(4, 16)}, crossing)  # whose axis may cross them


def test_hsdp_needs_two_axes():
    with pytest.raises(outlay.errors.LayoutError, match="inside='data', across='data'"):
        outlay.layout.hsdp("data", "data")


def simulated_hosts(hosts: tuple[int, ...], **axes: int) -> MeshInfo:
    return MeshInfo(tuple(axes.items()), tuple(range(len(hosts))), hosts, "abstract")


def test_zero2_splits_gradients_that_the_step_names():
    state = {"params": {"w": shape(8)}, "opt_state": {"mu": {"w": shape(8)}}}
    plan = (outlay.zero2(min_size=1) + outlay.data_parallel()).plan(
        state, MESH, intermediates={"grads": {"w": shape(8)}}
    )
    assert {leaf.path: leaf.spec for leaf in plan} == {
        "params.w": P(),
        "opt_state.mu.w": P("data"),
        "grads.w": P("data"),
    }


def test_zero2_asks_a_step_that_names_no_gradients_to_name_them():
    state = {"params": {"w": shape(8)}, "opt_state": {"mu": {"w": shape(8)}}}
    layout = outlay.zero2(min_size=1) + outlay.data_parallel()
    with pytest.raises(
        outlay.errors.LayoutError, match=r'unused rule: rule 2.*\n.*\n.*outlay\.constrain\(grads, "grads"\)'
    ):
        layout.plan(state, MESH, intermediates={})
    assert layout.plan(state, MESH)["opt_state.mu.w"].spec == P("data")  # asked for the state alone


def test_data_parallel_with_an_empty_batch_says_to_leave_it_out():
    with pytest.raises(outlay.errors.LayoutError, match=r"the batch holds no array: leave out outlay\.data_parallel"):
        outlay.data_parallel().plan({"w": shape(8)}, MESH, batch={})


def test_data_parallel_splits_the_batch_and_keeps_the_state_whole():
    plan = outlay.data_parallel().plan({"w": shape(8)}, MESH, batch={"x": shape(8, 3), "n": shape()})
    assert [leaf.spec for leaf in plan] == [P(), P(), P("data", None)]
