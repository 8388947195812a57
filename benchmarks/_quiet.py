"""Tell rounds of a benchmark that other work disturbed, by the processor time that Linux accounts for."""

import os
from collections.abc import Iterable
from pathlib import Path

# Of the processors' time. A system service or two is always there.
ALLOWED = 0.05
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class OtherWork:
    """Seconds that processes other than these have taken of the processors, since it was made."""

    def __init__(self, pids: Iterable[int]) -> None:
        self.pids = [os.getpid(), *pids]
        self.start = self._now()

    def seconds(self) -> float:
        return self._now() - self.start

    def _now(self) -> float:
        user, nice, system = map(int, Path("/proc/stat").read_text().split()[1:4])
        own = 0
        for pid in self.pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            own += int(fields[11]) + int(fields[12])
        return (user + nice + system - own) / _TICKS_PER_SECOND
