import threading
import time

import jax
import jax.numpy as jnp
import pytest

from outlay.jobs import current_job, waiting
from outlay.jobs.job_folder import JobFolder, Wait
from outlay.jobs.join import _is_pending, _work_unseen
from outlay.jobs.waiting import Devices, Waiting

FEW = 20
"""Looks, where each must see that nothing is waited for; a wait is seen at the second one."""


@pytest.fixture
def wait_of_main(monkeypatch):
    """How long the main thread waits at one line, as another thread sees it that looks twice."""
    monkeypatch.setattr(waiting, "_SAMPLE", 0.01)
    monkeypatch.setattr(waiting, "_BUSY", 100.0)
    monkeypatch.setattr(waiting, "is_idle", lambda: True)

    def look(wait, most=100, **devices):
        own, seen, here = Waiting(Devices(**devices)), [], threading.Event()

        def ask():
            here.wait()
            while not seen or (len(seen) < most and not seen[-1].seconds):
                time.sleep(0.05)
                seen.append(own.sample())
            go_on.set()

        go_on = threading.Event()
        thread = threading.Thread(target=ask)
        thread.start()
        here.set()
        wait(go_on)
        thread.join()
        return seen

    return look


def in_python(go_on):
    go_on.wait()


def in_own_code(go_on):
    while not go_on._flag:  # not `is_set`, in which this thread would stand at times
        pass


def test_a_wait_in_pythons_own_library_is_none_in_jax_even_if_jax_computes(wait_of_main, monkeypatch):
    seen = wait_of_main(in_python, FEW, is_pending=lambda: True)
    assert {wait.seconds for wait in seen} == {0.0}


def test_a_line_of_the_program_waits_for_jax_where_jax_owes_it_a_value(wait_of_main, monkeypatch):
    monkeypatch.setattr(waiting, "_instruction", lambda frame: 1)
    assert wait_of_main(in_own_code, is_pending=lambda: True)[-1].seconds > 0
    assert wait_of_main(in_own_code, FEW, is_pending=lambda: False)[-1].seconds == 0


def test_a_thread_that_has_just_woken_does_not_hide_where_the_main_thread_stands(wait_of_main, monkeypatch):
    """Nobody knows then for how long it waits; who is stuck is told by where it stands."""
    monkeypatch.setattr(waiting, "_instruction", lambda frame: 1)
    monkeypatch.setattr(waiting, "is_idle", lambda: False)
    last = wait_of_main(in_own_code, FEW, is_pending=lambda: True)[-1]
    assert last.in_jax
    assert last.seconds == 0.0


def test_devices_that_may_work_unseen_have_a_minute_more(wait_of_main, monkeypatch):
    monkeypatch.setattr(waiting, "_instruction", lambda frame: 1)
    monkeypatch.setattr(waiting, "_UNSEEN", 0.2)
    seen = wait_of_main(in_own_code, is_pending=lambda: True, work_unseen=lambda: True)
    assert seen[2].seconds == 0.0
    assert seen[-1].works_unseen
    assert seen[-1].seconds > 0


def test_a_wait_at_the_key_value_store_is_known_by_its_file():
    # The launcher must not import that module, which can import JAX.
    assert current_job.__file__ == waiting._JOB_WAITS


def test_who_asks_twice_at_once_gets_the_same_answer_and_no_look_at_his_own_asking():
    own = Waiting()
    assert own.sample() is own.sample()


def test_the_simulated_devices_of_tests_work_in_their_process_and_owe_nothing_once_they_are_done():
    jax.block_until_ready(jnp.ones(3) + 1)
    assert not _work_unseen()
    assert not _is_pending()


def test_a_wait_is_read_by_the_launcher_as_it_was_written(tmp_path):
    folder = JobFolder(tmp_path)
    assert folder.wait(0) is None
    folder.wait_path(0).write_bytes(b" " * 256)
    assert folder.wait(0) is None
    folder.wait_path(0).write_text('{"seconds": 2.5, "works_unseen": true, "in_jax": true, "sample": 7}')
    assert folder.wait(0) == Wait(2.5, True, True, 7)
