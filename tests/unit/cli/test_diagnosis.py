"""What `outlay doctor --message` knows, against the words of JAX itself."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.cli.library_messages import LIBRARY_MESSAGES
from tests.unit.cli.mistakes import MISTAKES
from tests.unit.cli.reported_messages import REPORTED_MESSAGES

from outlay.cli.diagnosis import diagnose_text
from outlay.cli.known_messages import KNOWN, longest_word

RECORDED = Path(__file__).parents[2] / "golden" / "messages"
VERSIONS = ("0.10.2", "0.12.0.1")

# What only several processes, other start-ups or other hardware can say, as both versions of JAX really said it.
LOGS = [
    ("shutdown_barrier_coordinator", "barrier that not all reached", "1 of 2 processes reached the shutdown barrier"),
    (
        "shutdown_barrier_coordinator",
        "barrier that not all reached",
        "Process 1 wanted to end, while the others went on",
    ),
    ("shutdown_barrier_failed", "ended because another failed", "another process died"),
    ("heartbeats", "process that fell silent", "process 1 stopped sending signs of life"),
    ("coordinator_killed", "coordinator gone", "process 0, which coordinates, is gone"),
    ("gloo_peer_killed", "lost connection", "(AllGather: Connection closed by peer)"),
    ("never_came", "process that never came", "did not all find each other in time"),
    ("peer_not_found", "peer that was not found", "under cpu:gloo/0,2048/1"),
    ("no_cluster", "no cluster found", "to read coordinator_address from"),
    ("port_in_use", "port in use", "process 0 cannot listen on port 2"),
    ("unknown_flag", "unknown flag of XLA", "does not know --xla_nonsense_flag=1"),
    ("flag_value", "value of a flag of XLA", "--xla_force_host_platform_device_count the value 'x'"),
    (
        "unknown_platform",
        "platform that is not there",
        "the platform 'nonsense' was asked for, and this JAX has ['cpu'",
    ),
    ("rematerialization", "whole copy on every device", "the value of %add.1 (jit(f)/add), of type f32[4,8,2]"),
    ("rematerialization", "whole copy on every device", "this one goes to a single device, as for jax.debug.print"),
    (
        "rendezvous",
        "devices waiting for each other",
        "(all reduce) waits for all 8 devices of this process, and 3 s later",
    ),
    ("fetch", "value held by other processes", "multihost_utils.process_allgather(x, tiled=True)"),
    ("fetch", "gather needs tiled=True", "without tiled=True"),
    ("fetch", "values differ between processes", "make_array_from_process_local_data"),
    ("fetch", "one device for an array of many processes", "cannot be moved to one device"),
    ("orbax", "checkpoint of other devices", "jax.ShapeDtypeStruct(shape, dtype, sharding="),
    ("orbax", "checkpoint of another tree", "a leaf 'v' that the checkpoint lacks; it holds [('w',)]"),
    ("orbax", "checkpoint of another shape", "asks for shape (6,), the checkpoint holds (8,)"),
    ("tpu_compiler", "does not fit on the TPU", "HLO temporaries needs 59.00G, and a device has 15.75G of HBM"),
    ("gpu_compiler", "compiler cannot make it fit", "wanted 28.37GiB on a device, and got no lower than 225.75GiB"),
]

# Words of other versions and of hardware that no test has: from JAX's source and from public reports.
QUOTED = [
    (
        "ValueError: The context mesh AbstractMesh('data': 8, axis_types=(Auto,), device_kind=cpu, num_cores=None, "
        "platform=cpu) should match the mesh passed to shard_map Mesh('e': 8, axis_types=(Auto,))",
        "shard_map over another mesh",
        "leave mesh= out",
    ),
    (
        "shape=[2, 4] is incompatible with mesh_shape=OrderedDict({'data': 4, 'model': 2}): dim_size=2 is not "
        "divisible by axis_size=4.",
        "constraint does not divide",
        "split over an axis of 4 devices",
    ),
    ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4770354232 bytes.", "out of memory", "4.44 GiB"),
    ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 36.00GiB.", "out of memory", "room for 36.00GiB more"),
    ("Failed to allocate request for 176.00MiB (184549376B) on device ordinal 0", "out of memory", "176.00MiB"),
    ("Attempting to allocate 4.00G. That was not possible. There are 2.1G free.", "out of memory", "4.00G"),
    (
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 21.90G of "
        "7.48G hbm. Exceeded hbm capacity by 14.42G.",
        "does not fit on the TPU",
        "the compiled program needs 21.90G, and a device has 7.48G of hbm",
    ),
    (
        "UNKNOWN: Gloo ReduceScatter failed: [external/gloo/gloo/transport/tcp/buffer.cc:72] Read timeout [::1]:38624",
        "collective that waited too long",
        "(ReduceScatter), another process did not take part in time (Read timeout)",
    ),
    (
        "NCCL operation ncclCommInitRank(&comm, nranks, id, rank) failed: unhandled system error (run with "
        "NCCL_DEBUG=INFO for details). Last NCCL warning(error) log entry (may be unrelated) 'Accept failed'.",
        "NCCL failed",
        "ncclCommInitRank: unhandled system error (Accept failed)",
    ),
    (
        "The backend (cpu, 0.10) does not support cross-host device transfers. Please set "
        "jax_cross_host_transfer_socket_address",
        "transfer between processes",
        "jax_cross_host_transfer_socket_address",
    ),
    (
        "An NVIDIA GPU may be present on this machine, but a CUDA-enabled jaxlib is not installed. Falling "
        "back to cpu.",
        "GPU that is not used",
        "jax[cuda13]",
    ),
    (
        "JaxRuntimeError: INTERNAL: RET_CHECK failure (external/xla/xla/backends/cpu/runtime/fft_thunk.cc:168) "
        "LayoutUtil::IsMonotonicWithDim0Major(input_shape_.layout())",
        "FFT of a dim that is not last",
        "only batch dims are split",
    ),
    (
        "F1127 04:18:04 3791 fft_handler.cc:117] Check failed: size_per_partition % num_partitions == 0 (1 vs. 0)",
        "FFT along a split dim",
        "with_sharding_constraint(x, P('data', None)) before the FFT",
    ),
    (
        "ValueError: Query, key and value should have same sharding.",
        "attention whose operands are split differently",
        "constrain the three alike before the call",
    ),
    (
        'flax.errors.PartitioningUnspecifiedError: Trying to transform a Partitioned variable but "partition_name" is '
        "not specified in metadata_params: {'x': 1}",
        "annotated parameter under a new dim",
        "metadata_params is {'x': 1}",
    ),
    (
        "ValueError: Computation was compiled for input layouts that disagree with the layouts of arguments passed to "
        "it. Here are the 1 mismatches:",
        "int4 of a compiled function",
        "x.astype('int4')",
    ),
    (
        "Jax plugin configuration error: Exception when calling jax_plugins.xla_cuda13.initialize()",
        "plugin that does not start",
        "the plugin xla_cuda13 is installed",
    ),
    *LIBRARY_MESSAGES,
    *REPORTED_MESSAGES,
]


def said_by(make: Callable[[], object]) -> str:
    """The last line of the traceback of a mistake, as Python prints it."""
    try:
        make()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("it was no mistake")


def flat(text: object) -> str:
    return " ".join(str(text).split())


@pytest.mark.parametrize(
    ("name", "words", "make"), MISTAKES, ids=[f"{name} {make.__name__}" for name, _, make in MISTAKES]
)
def test_what_this_jax_says_is_explained(name, words, make):
    message = said_by(make)
    diagnosis = diagnose_text(message)
    assert [finding.name for finding in diagnosis.findings] == [name], message
    for word in words:
        assert word in flat(diagnosis)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("log", "name", "words"), LOGS)
def test_what_both_versions_logged_is_explained(version, log, name, words):
    diagnosis = diagnose_text((RECORDED / version / f"{log}.txt").read_text())
    (finding,) = (finding for finding in diagnosis.findings if finding.name == name)
    assert words in flat(finding)


@pytest.mark.parametrize(
    ("text", "name", "words"), QUOTED, ids=[f"{name} {i}" for i, (_, name, _) in enumerate(QUOTED)]
)
def test_what_others_reported_is_explained(text, name, words):
    (finding,) = diagnose_text(text).findings
    assert finding.name == name
    assert words in flat(finding)


def test_every_known_message_is_tested():
    tested = {name for name, _, _ in MISTAKES} | {name for _, name, _ in LOGS} | {name for _, name, _ in QUOTED}
    assert tested == {message.name for message in KNOWN}
    assert len({message.name for message in KNOWN}) == len(KNOWN)


def test_every_recorded_log_is_used():
    assert {path.stem for path in RECORDED.rglob("*.txt")} == {log for log, _, _ in LOGS}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_cause_comes_first_and_what_follows_is_named_so(version):
    log = (RECORDED / version / "shutdown_barrier_failed.txt").read_text()
    remat = (RECORDED / version / "rematerialization.txt").read_text()
    error = "ValueError: Resource axis: modle of P('modle',) is not found in mesh: ('data', 'model').\n"
    diagnosis = diagnose_text(log + remat + error)
    assert [finding.weight for finding in diagnosis.findings] == ["error", "warning", "consequence", "consequence"]
    shown = str(diagnosis)
    places = [shown.index(words) for words in ("my own mistake", "axis not in", "whole copy", "consequence", "barrier")]
    assert places == sorted(places)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_error_of_the_user_is_named_though_it_is_not_known(version):
    diagnosis = diagnose_text((RECORDED / version / "shutdown_barrier_failed.txt").read_text())
    assert diagnosis.raised == ((5, "RuntimeError: my own mistake"),)
    assert "not known: RuntimeError: my own mistake (line 5)" in str(diagnosis)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_log_without_the_cause_says_so(version):
    shown = str(diagnose_text((RECORDED / version / "heartbeats.txt").read_text()))
    assert shown.startswith("the cause is not in this text: another process failed first")


def test_a_known_error_at_the_end_of_a_traceback_is_not_unknown():
    assert diagnose_text((RECORDED / VERSIONS[1] / "no_cluster.txt").read_text()).raised == ()


def test_the_same_message_many_times_is_one_finding():
    text = "ValueError: Resource axis: a of P('a',) is not found in mesh: ('data',).\n" * 3
    (finding,) = diagnose_text(text + text.replace("'a'", "'b'").replace(" a ", " b ")).findings
    assert (finding.line, finding.times, len(finding.cases)) == (1, 6, 2)
    many = "".join(f"Resource axis: x{i} of P('x{i}',) is not found in mesh: ('data',).\n" for i in range(9))
    assert "and 6 more like it" in str(diagnose_text(many))


def test_text_that_was_wrapped_or_coloured_is_read():
    text = "Resource axis: modle of \x1b[31mP('modle',)\x1b[0m is\r\n    not found in\n  mesh: ('data', 'model')."
    assert "did you mean 'model'?" in flat(diagnose_text(text))


def test_an_unknown_message_is_admitted():
    diagnosis = diagnose_text("ValueError: the moon is in the wrong house")
    assert not diagnosis.findings
    assert f"none of the {len(KNOWN)} known messages is in this text; they are about: splitting an array" in str(
        diagnosis
    )


@pytest.mark.compiles
def test_a_log_of_megabytes_is_read():
    log = "".join(
        (RECORDED / VERSIONS[0] / f"{log}.txt").read_text() for log in dict.fromkeys(log for log, _, _ in LOGS)
    )
    text = "step 1 loss 0.5 NamedSharding(mesh=Mesh('data': 4), spec=P('data',)) Gloo NCCL operation\n" * 40_000
    # What is not linear in the text ends at the limit of a test; benchmarks/growth.py measures how it grows.
    assert len(diagnose_text(text + log).findings) > 15


def test_each_meaning_and_fix_is_whole():
    for message in KNOWN:
        assert re.search(r"\w", message.meaning)
        assert re.search(r"\w", message.fix)
        assert not re.search(r"\s{2}|\s$|^\s", f"{message.meaning}{message.fix}{message.outlay}"), message.name


def test_the_guide_lists_exactly_what_is_known():
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "error_messages.md").read_text()
    rows = dict(re.findall(r"^\| (\w.*?) \| (.*) \|$", guide.partition("## Known messages")[2], re.MULTILINE))
    assert rows.pop("about") == "messages"
    assert rows == {
        theme: ", ".join(message.name for message in messages)
        for theme, messages in itertools.groupby(KNOWN, key=lambda message: message.theme)
    }
    assert f" {len(KNOWN)} messages of JAX" in guide


def test_each_pattern_has_a_word_that_is_looked_for_first():
    """Without one it would be tried at every letter of a log."""
    assert not [pattern for message in KNOWN for pattern in message.patterns if len(longest_word(pattern)) < 5]


@pytest.mark.parametrize(
    "text",
    ["deadbeef" * 125_000, ("x" * 4000 + "\n") * 250, (" requires " + "a" * 2000) * 500, "spec=P('data', " * 66_000],
    ids=["one long word", "long lines", "words of a message", "what a message begins with"],
)
def test_a_megabyte_is_read_in_time_in_proportion_to_it(text):
    """Were it the square of it, this would take hours."""
    known = "Unknown backend nonsense. Available backends are ['cpu']\n"
    findings = diagnose_text(f"{text}\n{known}{text}").findings
    assert [finding.name for finding in findings] == ["platform that is not there"]
