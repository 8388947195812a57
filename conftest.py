"""What every test and doctest runs on: eight simulated CPU devices, and numerics stricter than a user's.

It stands at the root, not in tests/, because the doctests of src/ need it too.
"""

import contextlib
import functools
import gc
import hashlib
import importlib.metadata
import io
import itertools
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import hypothesis
import psutil
import pytest

import outlay
from outlay.core.runtime_flags import merge_flags

# Importing and tracing make millions of small objects, most of which stay: a twentieth of the time went into looking
# for cycles among them.
gc.set_threshold(100_000, 20, 50)

# Most of what XLA does to compile a small program is to make fast machine code of it, which tests do not need. What it
# makes it of, the optimized HLO that tests read, is the same. Processes that tests start inherit the flags; what must
# hold in the code that users run is also tested without them (test_brain_as_compiled.py).
# One part to generate code for, not 32 side by side: each has a cost of its own, and tests run side by side as well.
QUICK_COMPILES = {"xla_backend_optimization_level": "0", "xla_cpu_parallel_codegen_split_count": "1"}
if importlib.metadata.version("jax").startswith("0.10."):  # later ones know no other way, and stop at the flag
    QUICK_COMPILES["xla_cpu_use_fusion_emitters"] = "false"
os.environ["XLA_FLAGS"] = merge_flags(os.environ.get("XLA_FLAGS", ""), QUICK_COMPILES)


def cache_folder() -> Path:
    """Where compiled programs stay from run to run: machine code, so each kind of processor has a folder of its own."""
    cpuinfo = Path("/proc/cpuinfo")
    flags = [line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")] if cpuinfo.exists() else []
    kind = hashlib.sha256("".join([platform.processor(), *flags[:1]]).encode()).hexdigest()[:8]
    return Path(__file__).parent / ".jax_cache" / f"{platform.machine()}-{kind}"


# Processes that tests start inherit it too. Equal programs of other lines are other entries: tests look at the lines.
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache_folder())
os.environ["JAX_COMPILATION_CACHE_INCLUDE_METADATA_IN_KEY"] = "true"
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
# What commands keep of the programs that they compile is for one run of the tests.
if "PYTEST_XDIST_WORKER" not in os.environ:
    own_cache = tempfile.TemporaryDirectory(prefix="outlay-tests-")
    os.environ["XDG_CACHE_HOME"] = own_cache.name
outlay.simulate(8)


def interrupt(*_: object) -> None:
    # Once: a terminal sends Ctrl-C to make, its shell and this process, and the shell passes it on as well.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


# Also because a shell starts what runs in the background with Ctrl-C ignored, and children inherit that: the tests that
# send it to commands would wait for ever.
signal.signal(signal.SIGINT, interrupt)

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis.internal.conjecture import providers
from jax.sharding import PartitionSpec

# Not dtype promotion too: optax itself raises floats to integer powers, in the bias correction of Adam.
jax.config.update("jax_numpy_rank_promotion", "raise")

# Compiling takes longer than hypothesis's deadline, and a gate must try the same examples every time. The thorough run
# tries more of them.
hypothesis.settings.register_profile("outlay", deadline=None, derandomize=True, max_examples=25)
hypothesis.settings.register_profile("thorough", hypothesis.settings.get_profile("outlay"), max_examples=100)
hypothesis.settings.load_profile("outlay")
# Numbers and words of the modules that happen to be loaded are no examples: they differ from worker to worker, and to
# read a thousand modules for them took each worker four seconds in a new clone.
pytest.MonkeyPatch().setattr(providers, "_get_local_constants", lambda: providers._local_constants)


# Jobs of tests have sessions of their own, so neither Ctrl-C nor the end of this process reaches them. All that a run
# of the tests starts carries its name, and what is left when the run ends, for whatever reason, is killed.
RUN = "OUTLAY_TEST_RUN"


def pytest_configure(config: pytest.Config) -> None:
    if asked_first(config) == "thorough":
        hypothesis.settings.load_profile("thorough")
    if hasattr(config, "workerinput"):
        return
    os.environ[RUN] = f"{os.getpid()}-{time.time_ns()}"
    if getattr(config.option, "numprocesses", None):
        from tests import forks  # which pytest finds from here on

        of_forks = Path(own_cache.name) / "forks"
        of_forks.mkdir()
        forks.let_workers_share(of_forks)
    signal.signal(signal.SIGTERM, interrupt)


def pytest_keyboard_interrupt() -> None:
    kill_what_is_left()


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        kill_what_is_left()


def kill_what_is_left() -> None:
    for _ in range(100):  # what is about to be killed may start another
        if not sum(map(_kill_if_left, psutil.process_iter())):
            return


def _kill_if_left(process: psutil.Process) -> bool:
    try:
        if process.pid == os.getpid() or process.environ().get(RUN) != os.environ[RUN]:
            return False
        process.kill()
    except psutil.Error:  # it has ended, or is somebody else's
        return False
    return True


# The tiers: CONTRIBUTING.md says what runs where. They run in this order, so that no long one is left to the end.
FOLDERS = {"tests/docs": "pages", "tests/multiprocess": "processes", "tests/contract": "compiles"}
STARTS = {"subprocess.Popen", "os.fork", "os.posix_spawn"}
OF_LIBRARIES = ("fc-list", "jax_tpu_compiler")
"""What Matplotlib asks, once on a new machine, for the fonts that there are, and the compiler of absent TPUs."""
started: list[str] = []


def note_start(event: str, arguments: tuple[object, ...]) -> None:
    if event in STARTS and not any(name in str(arguments[:2]) for name in OF_LIBRARIES):
        started.append(event)


sys.addaudithook(note_start)


ONLY = {
    "newest": ("pytest.mark.newest",),
    "thorough": ("pytest.mark.thorough", "pytest.mark.some_cases", "given("),
}
"""What stands in a file of which the mark that is asked for first leaves something."""


def asked_first(config: pytest.Config) -> str:
    return config.option.markexpr.partition(" ")[0]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import, in each worker, the many files of which the mark that is asked for would leave nothing."""
    asked = asked_first(config)
    if collection_path.suffix == ".py" and asked in ONLY:
        text = collection_path.read_text(encoding="utf-8")
        return not any(mark in text for mark in ONLY[asked]) or None
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Have each worker import a share of the files first: what it rewrites for asserts, the others then read."""
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        number, num_workers = int(worker.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        asked = (Path(argument.partition("::")[0]).resolve() for argument in session.config.args)
        files = [file for path in asked for file in sorted(path.rglob("test_*.py"))]
        for file in files[number::num_workers]:
            if not pytest_ignore_collect(file, session.config):
                with contextlib.suppress(Exception, pytest.skip.Exception):  # told where the file is collected
                    importlib.import_module(module_name(file))


def module_name(file: Path) -> str:
    parts = file.with_suffix("").relative_to(Path(__file__).parent).parts
    return ".".join(parts[2:] if parts[0] == "packages" else parts)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[object], list[object]]:
    """Look for examples where there are some, and in src/ alone: to look for them took a third of collecting."""
    collectors = yield
    here = "src" in file_path.relative_to(Path(__file__).parent).parts
    has_examples = here and (file_path.suffix != ".py" or ">>>" in file_path.read_text(encoding="utf-8"))
    return [one for one in collectors if has_examples or type(one).__name__ != "DoctestModule"]


def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    for item in items:
        if folder_of(item.path) in FOLDERS:
            item.add_marker(FOLDERS[folder_of(item.path)])
        if asked_first(config) == "thorough" and getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("thorough")  # which tries more examples
    for _, cases in itertools.groupby(items, lambda item: item.nodeid.partition("[")[0]):
        leave_out_cases(list(cases))
    items.sort(key=lambda item: [*FOLDERS, folder_of(item.path)].index(folder_of(item.path)))


def leave_out_cases(cases: list[pytest.Item]) -> None:
    """Mark the cases of a test that its mark `some_cases(here, newest=there)` leaves to the thorough run."""
    if asked := cases[0].get_closest_marker("some_cases"):
        there = [case for case in cases if not case.get_closest_marker("any_jax")]
        here = [case for case in cases if case not in there]
        chosen = spread([*there, *here], max(asked.args[0], asked.kwargs.get("newest", 0)))
        for case in cases:
            if case not in chosen[: asked.args[0]]:
                case.add_marker("thorough")
            if case not in chosen[: asked.kwargs.get("newest", asked.args[0])]:
                case.add_marker("any_jax")


def spread(cases: list[pytest.Item], num: int) -> list[pytest.Item]:
    """Choose cases, each with the most values of its parameters that none before has: the same ones in every run."""
    chosen: list[pytest.Item] = []
    with np.printoptions(threshold=8, edgeitems=1):  # to write out whole arrays took a tenth of collecting
        values = {case: values_of(case) for case in cases}
    seen: set[tuple[str, str]] = set()
    while len(chosen) < min(num, len(cases)):
        best = max((case for case in cases if case not in chosen), key=lambda case: len(values[case] - seen))
        chosen.append(best)
        seen |= values[best]
    return chosen


def values_of(case: pytest.Item) -> set[tuple[str, str]]:
    assert isinstance(case, pytest.Function)
    return {(name, repr(value)) for name, value in case.callspec.params.items()}


def pytest_collection_finish() -> None:
    # Modules and tests stay to the end: nothing of them is garbage.
    gc.collect()
    gc.freeze()


@functools.cache
def folder_of(path: Path) -> str:
    parts = path.relative_to(Path(__file__).parent).parts
    own = parts[2:] if parts[0] == "packages" else parts  # packages/outlay-brain/brain_tests/unit is as tests/unit
    return "/".join(("tests" if own[0].endswith("tests") else own[0], *own[1:2]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    started.clear()  # of fixtures that several tests share, the first test would be blamed
    result = yield
    if started and not any(map(item.get_closest_marker, ("processes", "pages"))):
        pytest.fail(f"{item.nodeid} starts processes: mark it with pytest.mark.processes, `make check` has none")
    return result


@pytest.fixture(scope="session", autouse=True)
def eight_devices() -> None:
    """Fail, never skip: on one device most sharding tests would pass without testing anything."""
    assert len(jax.devices()) == 8, f"the tests need 8 simulated devices and found {jax.devices()}"


@pytest.fixture(scope="session", autouse=True)
def names_in_doctests(doctest_namespace: dict[str, object]) -> None:
    """What the docstring examples take as imported."""
    doctest_namespace.update(jax=jax, jnp=jnp, np=np, outlay=outlay, P=PartitionSpec)


@pytest.fixture(scope="module")
def blank_pictures() -> Generator[None]:
    """Save figures as a blank picture: to draw its pictures is half of what a run of a few steps costs."""
    from matplotlib.figure import Figure  # which takes half a second, and most workers draw nothing

    blank = io.BytesIO()
    Figure(figsize=(0.1, 0.1)).savefig(blank)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda _, file, **options: file.write(blank.getvalue()))
        yield
