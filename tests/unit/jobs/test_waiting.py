import time

from outlay.jobs import waiting


def test_who_asks_twice_at_once_gets_the_same_answer_and_no_look_at_his_own_asking(monkeypatch):
    looks = iter([3.5, 4.0])
    monkeypatch.setattr(waiting, "_sampled", (time.monotonic() - 10.0, 0.0))

    def look():
        waiting._sampled = (time.monotonic(), 0.0)
        return next(looks)

    monkeypatch.setattr(waiting, "_look", look)
    assert [waiting.seconds_waiting_in_jax() for _ in range(3)] == [3.5] * 3
    monkeypatch.setattr(waiting, "_sampled", (time.monotonic() - 10.0, 0.0))
    assert waiting.seconds_waiting_in_jax() == 4.0
