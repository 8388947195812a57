"""Keep freed memory in the process, so that the next step does not take it from the system anew."""

from __future__ import annotations

import ctypes
import platform

# Parameters of glibc's mallopt (malloc.h). Large blocks come from the heap instead of maps of their own, which are
# given back when freed; the heap does not shrink; and all threads share one, so that what one frees another can take.
_MMAP_MAX, _TRIM_THRESHOLD, _ARENA_MAX = -4, -1, -8
_SETTINGS = {_MMAP_MAX: 0, _TRIM_THRESHOLD: -1, _ARENA_MAX: 1}


def keep_memory() -> bool:
    """Have malloc keep the memory that is freed from now on; the process then stays as large as it has been.

    XLA's CPU backend takes the memory for gradients and temporaries anew at each step. glibc gives blocks of that size
    back to the system when they are freed, and the next step pays for a page fault every 4 KiB: a third of the step's
    time was measured.

    Returns:
        Whether it is so now: only with glibc, that is on most Linux systems; elsewhere nothing changes.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return min(mallopt(parameter, value) for parameter, value in _SETTINGS.items()) == 1
