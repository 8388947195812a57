"""Each case is a program of its own: a backend starts once in a process."""

import subprocess
import sys
import textwrap

import pytest
from tests import forks
from tests.unit.cli.command import environment

from outlay.core import user_code

pytestmark = pytest.mark.processes


def run(tmp_path, program: str, *, forked: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a program; where it is forked, JAX is imported and watched already, as by `import outlay`."""
    file = tmp_path / "train.py"
    file.write_text(textwrap.dedent(program))
    command, env = [forks.python() if forked else sys.executable, file], environment(JAX_PLATFORMS="cpu")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_the_call_that_started_the_backend_is_named_by_file_line_and_function(tmp_path):
    done = run(
        tmp_path,
        """
        from outlay.core import backend_watch
        backend_watch.watch()
        import jax
        def make_key():
            return jax.random.key(0)
        assert backend_watch.started_by() is None
        make_key()
        print(backend_watch.describe_start())
        """,
    )
    where = f"{tmp_path / 'train.py'}:6 in make_key: return jax.random.key(0)"
    assert done.stdout.strip() == f"JAX's backend was started by {where}"
    assert done.stderr == ""


@pytest.mark.thorough  # test_simulated.py has a start before Outlay
def test_a_start_before_the_watch_is_said_to_be_unknown(tmp_path):
    done = run(
        tmp_path,
        """
        import jax
        jax.devices()
        from outlay.core import backend_watch
        backend_watch.watch()
        print(backend_watch.describe_start())
        """,
        forked=False,
    )
    assert "started before outlay was imported, so the call that did it is not known" in done.stdout


def test_a_start_that_logging_hid_is_said_to_be_unrecorded(tmp_path):
    done = run(
        tmp_path,
        """
        import logging
        from outlay.core import backend_watch
        backend_watch.watch()
        logging.disable(logging.CRITICAL)
        import jax
        jax.devices()
        print(backend_watch.describe_start())
        """,
    )
    assert "by a call that was not recorded" in done.stdout


OF_THE_BACKEND = "logging.basicConfig(); logging.getLogger('jax._src.xla_bridge').setLevel(logging.DEBUG)"


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    ("setting", "shown", "watch_first"),
    [
        ("logging.basicConfig(level=logging.INFO)", False, True),
        ("logging.basicConfig(level=logging.DEBUG)", True, False),
        ("logging.basicConfig(); logging.getLogger('jax').setLevel(logging.DEBUG)", True, True),
        (OF_THE_BACKEND, True, True),  # the logger whose level the watch changes
        (OF_THE_BACKEND, True, False),
    ],
)
def test_debug_records_are_shown_exactly_where_they_were_shown_without_the_watch(tmp_path, setting, shown, watch_first):
    watch = "from outlay.core import backend_watch; backend_watch.watch()"
    lines = ["import logging", *([watch, setting] if watch_first else [setting, watch])]
    lines += ["import jax", "jax.devices()", "assert backend_watch.started_by() is not None"]
    done = run(tmp_path, "\n".join(lines), forked=watch_first)
    assert ("Initializing backend 'cpu'" in done.stderr) == shown


def test_watching_twice_is_watching_once(tmp_path):
    done = run(
        tmp_path,
        """
        import logging
        from outlay.core import backend_watch
        backend_watch.watch(); backend_watch.watch()
        print(len(logging.getLogger("jax._src.xla_bridge").filters))
        """,
    )
    assert done.stdout.strip() == "1"


def test_calls_print_as_a_place_in_the_code():
    assert str(user_code.Call("a.py", 3, "<module>", "f()")) == "a.py:3 at top level: f()"
    assert str(user_code.Call("a.py", 3, "main", "")) == "a.py:3 in main"
