import jax
import pytest

from outlay.program import consistency as facts
from outlay.program.consistency import Facts, disagreement


def of(**environment):
    return facts._of_the_compiler(environment)


def test_flags_of_the_compiler_are_compared_one_by_one():
    one = of(XLA_FLAGS="--xla_cpu_enable_fast_math=true --xla_cpu_max_isa=AVX2")
    assert one["XLA_FLAGS --xla_cpu_enable_fast_math"] == "true"
    assert one == of(XLA_FLAGS="--xla_cpu_max_isa=AVX2   --xla_cpu_enable_fast_math=true")
    assert one != of(XLA_FLAGS="--xla_cpu_max_isa=AVX2")
    assert of(NVIDIA_TF32_OVERRIDE="0") != of()


@pytest.mark.parametrize(
    "flag",
    ["--xla_dump_to=/tmp/0", "--xla_force_host_platform_device_count=2", "--xla_gpu_per_fusion_autotune_cache_dir=/0"],
)
def test_flags_that_no_number_depends_on_may_differ(flag):
    assert of(XLA_FLAGS=flag) == of()


def test_options_of_jax_that_change_numbers_are_compared():
    before = of()
    with jax.default_matmul_precision("float32"):
        assert {name for name, value in of().items() if value != before[name]} == {"jax_default_matmul_precision"}


def test_the_difference_is_named():
    groups = {(0,): Facts(of(), {}, "", ""), (1,): Facts(of(XLA_FLAGS="--xla_cpu_enable_fast_math=true"), {}, "", "")}
    text = disagreement(groups, {group: facts.hashes for group, facts in groups.items()})
    assert "config: XLA_FLAGS --xla_cpu_enable_fast_math is true, there absent" in text
