"""Functions in machine code: their rows are computed once each, by however many threads come to help."""

import ctypes
import threading
import time

import jax
import numpy as np
import pytest

from outlay.brain.fused import jax_machine_code
from outlay.brain.fused.jax_machine_code import at_most_threads, compile_call, compile_rows, one_thread_reason

PIECE, NUM_ROWS = 2, 27
ADD_ONE = """
  br label %rows
rows:
  %i = phi i64 [%first, %start], [%next_i, %row]
  %more = icmp ult i64 %i, %last
  br i1 %more, label %row, label %end
row:
  %before_at = getelementptr float, ptr %a0, i64 %i
  %before = load float, ptr %before_at
  %after = fadd float %before, 1.0
  %after_at = getelementptr float, ptr %r0, i64 %i
  store float %after, ptr %after_at
  %at_once = sub i64 %last, %first
  %num = trunc i64 %at_once to i32
  %num_at = getelementptr i32, ptr %r1, i64 %i
  store i32 %num, ptr %num_at
  %next_i = add i64 %i, 1
  br label %rows
end:"""
"""Each row and 1; and how many rows are computed at once with it."""

Schedule = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
Destroy = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
Task = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def add_one(code=ADD_ONE, piece=PIECE):
    return compile_rows(code, "", 1, 2, piece)


def called(num_rows, add_one=add_one):
    """What XLA makes of it."""
    rows = np.arange(num_rows, dtype=np.float32)
    like = [jax.ShapeDtypeStruct((num_rows,), dtype) for dtype in (np.float32, np.int32)]
    after, at_once = jax.jit(jax.ffi.ffi_call(compile_call([add_one()]), like))(rows)
    np.testing.assert_array_equal(after, rows + 1)
    return np.asarray(at_once)


@pytest.fixture(autouse=True)
def none_waits(monkeypatch):
    """No thread that has helped waits for the next call, unless a test lets it."""
    monkeypatch.setattr(jax_machine_code.patience, "value", 0)
    until(lambda: num_waiting() == 0)


def num_waiting():
    return sum(place[0] != 0 for place in jax_machine_code._places)


def until(condition):
    for _ in range(10_000):
        if condition():
            return
        time.sleep(0.001)
    raise AssertionError("it has not come about in ten seconds")


def called_with(schedule, code=ADD_ONE, num_rows=NUM_ROWS, num_threads=3):
    """The rows after a call whose pool is another: `schedule(task, data)` says whether it took the task."""
    name = compile_call([add_one(code)])
    rows, after, at_once = np.arange(num_rows, dtype=np.float32), np.zeros(num_rows, np.float32), np.zeros(32, np.int32)
    destroyed = []
    dims = (ctypes.c_int64 * 1)(num_rows)
    buffers = [(ctypes.c_void_p * 6)() for _ in range(3)]
    for buffer, array in zip(buffers, (rows, after, at_once), strict=True):
        buffer[3], buffer[5] = array.ctypes.data, ctypes.addressof(dims)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(buffers[0]))
    results = (ctypes.c_void_p * 2)(*map(ctypes.addressof, buffers[1:]))
    schedule_ = Schedule(lambda asked: None if schedule(Task(asked[3]), asked[4]) else 1)
    destroy = Destroy(lambda refused: destroyed.append(refused))
    api = (ctypes.c_void_p * 19)()
    api[8], api[17] = (ctypes.cast(each, ctypes.c_void_p) for each in (destroy, schedule_))
    frame = (ctypes.c_void_p * 19)()
    frame[2], frame[9], frame[14] = map(ctypes.addressof, (api, arguments, results))
    address = jax_machine_code._compiled[name].get_function_address(name)
    with at_most_threads(num_threads):
        assert not ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)(ctypes.addressof(frame))
    return after - rows, len(destroyed)


@pytest.mark.parametrize("num_threads", [2, 3, 50])
def test_threads_take_pieces_until_all_rows_are_done(num_threads):
    with at_most_threads(num_threads):
        at_once = called(NUM_ROWS)
    np.testing.assert_array_equal(at_once, [PIECE] * 26 + [1])


@pytest.mark.parametrize(("num_threads", "num_rows"), [(1, NUM_ROWS), (4, 7 * PIECE), (4, 0)])
def test_one_thread_computes_few_rows_and_all_if_it_is_alone(num_threads, num_rows):
    asked = []
    change, _ = called_with(lambda *task: asked.append(task) or True, num_rows=num_rows, num_threads=num_threads)
    assert set(change) <= {1.0}
    assert not asked


@pytest.mark.parametrize("num_threads", [1, 3])
def test_one_call_computes_the_rows_of_several_functions(num_threads):
    """Of arrays of different lengths, one of them empty, in pieces of different sizes."""
    functions = [add_one(), add_one(ADD_ONE.replace("1.0", "4.0"), 3), add_one(), add_one()]
    arrays = [np.arange(num, dtype=np.float32) for num in (NUM_ROWS, 11, 0, 5)]
    like = [jax.ShapeDtypeStruct(rows.shape, dtype) for rows in arrays for dtype in (np.float32, np.int32)]
    call = jax.jit(jax.ffi.ffi_call(compile_call(functions), like))
    with at_most_threads(num_threads):
        for _ in range(2):  # the second call goes through the pieces backwards
            results = call(*arrays)
            for k, (rows, added) in enumerate(zip(arrays, (1, 4, 1, 1), strict=True)):
                np.testing.assert_array_equal(results[2 * k], rows + added)
    np.testing.assert_array_equal(results[3], [3] * 9 + [2] * 2)


def test_a_thread_that_never_comes_is_not_waited_for():
    """As in a pool whose threads all wait for something else, or in the child of a fork, which has none."""
    late = []
    change, num_errors = called_with(lambda *task: late.append(task) or True)
    assert set(change) == {1.0}
    assert (len(late), num_errors) == (2, 0)
    for task, data in late:  # whose arrays are gone by now
        task(data)


def test_a_thread_that_comes_at_once_leaves_nothing_to_do():
    change, _ = called_with(lambda task, data: task(data) or True)
    assert set(change) == {1.0}


def test_a_thread_that_has_helped_waits_and_is_asked_before_the_pool():
    jax_machine_code.patience.value = 2**62
    helping, asked = [], []

    def begin(task, data):
        helping.append(threading.Thread(target=task, args=(data,)))
        helping[-1].start()
        return True

    called_with(begin)
    until(lambda: num_waiting() == min(2, len(jax_machine_code._places)))
    change, _ = called_with(lambda *task: asked.append(task) or True)
    assert set(change) == {1.0}
    assert len(asked) == 2 - min(2, len(jax_machine_code._places))
    jax_machine_code.patience.value = 0
    for thread in helping:
        thread.join(280)
        assert not thread.is_alive()
    assert num_waiting() == 0


def test_a_thread_that_waits_for_the_next_call_does_not_yield_its_core(monkeypatch):
    """Beside other programs it would get it back after milliseconds, and the call that asks it would wait as long."""
    yielded, helping = [], []
    count = ctypes.CFUNCTYPE(ctypes.c_int32)(lambda: yielded.append(threading.get_ident()) or 0)
    address, counting = jax_machine_code._address, ctypes.cast(count, ctypes.c_void_p).value
    monkeypatch.setattr(jax_machine_code, "_address", lambda name: counting if name == "sched_yield" else address(name))
    jax_machine_code.patience.value = 10_000

    def begin(task, data):
        helping.append(threading.Thread(target=task, args=(data,)))
        helping[-1].start()
        return True

    change, _ = called_with(begin, ADD_ONE.replace("1.0", "5.0"))
    assert set(change) == {5.0}
    for thread in helping:
        thread.join(280)
        assert thread.ident not in yielded


def test_without_a_pool_one_thread_computes_and_there_is_a_reason(monkeypatch):
    monkeypatch.setattr(jax_machine_code._refused, "value", 0)
    assert one_thread_reason() is None
    change, num_errors = called_with(lambda task, data: False)
    assert set(change) == {1.0}
    assert num_errors == 2
    assert one_thread_reason() == "XLA has no threads for it"


def test_a_system_without_what_threads_need_has_one(monkeypatch):
    monkeypatch.setattr(jax_machine_code, "_address", lambda symbol: int(symbol != "sched_yield"))
    with at_most_threads(4):
        assert one_thread_reason() == "the C library of this system has no sched_yield"
        compile_call([add_one(ADD_ONE.replace("1.0", "2.0"))])
        assert jax_machine_code.num_threads.value == 1


def test_threads_that_cannot_tell_their_core_share_rows_all_the_same(monkeypatch):
    address = jax_machine_code._address
    monkeypatch.setattr(jax_machine_code, "_address", lambda symbol: symbol != "sched_getcpu" and address(symbol))
    with at_most_threads(3):
        another = ADD_ONE.replace("%at_once", "%num_at_once")
        at_once = called(NUM_ROWS, lambda: add_one(another))
        assert one_thread_reason() is None
    np.testing.assert_array_equal(at_once, [PIECE] * 26 + [1])
