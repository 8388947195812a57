import sys
import threading
import time

import jax

from outlay.jobs import heartbeat
from outlay.jobs.join import _work_unseen

WAITS = ("join", "_wait_for_tstate_lock")
"""Where a thread that waits for another one is, by the version of Python."""


def test_who_asks_twice_at_once_gets_the_same_answer_and_no_look_at_his_own_asking(monkeypatch):
    looks = iter([3.5, 4.0])
    monkeypatch.setattr(heartbeat, "_sampled", (time.monotonic() - 10.0, 0.0))

    def look():
        heartbeat._sampled = (time.monotonic(), 0.0)
        return next(looks)

    monkeypatch.setattr(heartbeat, "_look", look)
    assert [heartbeat.seconds_waiting_in_jax() for _ in range(3)] == [3.5] * 3
    monkeypatch.setattr(heartbeat, "_sampled", (time.monotonic() - 10.0, 0.0))
    assert heartbeat.seconds_waiting_in_jax() == 4.0


def test_a_wait_counts_later_where_devices_work_without_a_sign_in_the_process(monkeypatch):
    def seconds(*, unseen):
        monkeypatch.setattr(heartbeat, "_devices_work_unseen", lambda: unseen)
        # The main thread waits for another thread, in Python's library, which is taken for JAX here.
        monkeypatch.setattr(heartbeat, "_folder_of_jax", lambda: threading.__file__.rpartition("/")[0])
        monkeypatch.setattr(heartbeat, "_BUSY", 100.0)
        monkeypatch.setattr(heartbeat, "_is_in", lambda frame, folder: False)
        monkeypatch.setattr(heartbeat, "_sampled", (time.monotonic() - 1.0, time.process_time()))
        waited = []

        def ask():
            # On a busy machine the main thread may not have come to its wait when this one begins.
            while (main := sys._current_frames()[threading.main_thread().ident]).f_code.co_name not in WAITS:
                time.sleep(0.01)
            time.sleep(0.2)
            main = sys._current_frames()[threading.main_thread().ident]
            monkeypatch.setattr(heartbeat, "_since", ((id(main), main.f_lasti), time.monotonic() - 70.0))
            waited.append(heartbeat._look())

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        return waited[0]

    assert seconds(unseen=False) >= 70.0
    assert 10.0 <= seconds(unseen=True) < 60.0


def test_the_simulated_devices_of_tests_work_in_their_process():
    jax.devices()
    assert not _work_unseen()
