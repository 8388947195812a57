"""What is freed is taken again without a page fault; a process of its own, since the setting lasts as long as it."""

import platform
import subprocess
import sys

import pytest

from outlay.core import runtime_flags as module

# Takes and frees 64 MiB many times, touching every page, in the main thread and in another.
PROGRAM = """
import ctypes, resource, sys, threading
from outlay.core.runtime_flags import keep_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.malloc.argtypes = [ctypes.c_size_t]
if sys.argv[1] == "keep":
    assert keep_memory()
size = 2**26  # glibc raises its threshold by itself, but not beyond half of this

def work(times):
    for _ in range(times):
        block = libc.malloc(size)
        ctypes.memset(block, 1, size)
        libc.free(block)

def faults(times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    other = threading.Thread(target=work, args=(times,))
    other.start()
    other.join()
    work(times)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults(1)
print(faults(8))
"""


@pytest.mark.processes
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_freed_memory_is_taken_again_without_page_faults():
    def faults(how):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, timeout=280, check=True
        )
        return int(done.stdout)

    num_pages = 16 * 2**26 // 4096
    assert faults("as it comes") > 0.9 * num_pages
    assert faults("keep") < 0.01 * num_pages


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert module.keep_memory() is False
