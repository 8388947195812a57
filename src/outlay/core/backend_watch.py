"""Before JAX's backend starts: which call starts it, for errors of settings that come too late, and its flags.

JAX logs "Initializing backend" at DEBUG level. A filter on that logger takes the stack at that moment; records that
would not have been shown without the filter are dropped again. Nothing here imports JAX.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outlay.core.user_code import Call


# A logger's name, not an import: this must work before JAX is imported, so it cannot stand in jax_compat.
_LOGGER = "jax._src.xla_bridge"
# One below DEBUG: lets DEBUG records reach the filter, and cannot be mistaken for a level that somebody else has set.
_WATCHING = logging.DEBUG - 1


class _Watch(logging.Filter):
    """Record the stack when the backend starts; let through only what would have been shown anyway."""

    def __init__(self, level_before: int) -> None:
        super().__init__()
        self.level_before = level_before
        self.jax_was_imported = "jax" in sys.modules
        self.stack: traceback.StackSummary | None = None

    @property
    def started_by(self) -> Call | None:
        """The call that started the backend, as far as it was seen: read from the stack by whoever asks."""
        from outlay.core.user_code import user_call

        return user_call(self.stack) if self.stack is not None else None

    def filter(self, record: logging.LogRecord) -> bool:
        if str(record.msg).startswith("Initializing backend"):
            self.stack = traceback.extract_stack()
        return record.levelno >= self._level_without_watch()

    def _level_without_watch(self) -> int:
        logger = logging.getLogger(_LOGGER)
        level = self.level_before if logger.level == _WATCHING else logger.level
        return level or (logger.parent or logging.root).getEffectiveLevel()


def watch() -> None:
    """Start watching; a second call changes nothing."""
    logger = logging.getLogger(_LOGGER)
    if _watch() is None:
        logger.addFilter(_Watch(logger.level))
        logger.setLevel(_WATCHING)


def started_by() -> Call | None:
    """Return the call that started the backend last; None if no start has been seen."""
    watch_filter = _watch()
    return watch_filter.started_by if watch_filter else None


def describe_start() -> str:
    """Say what started the backend, for an error message: the call, or why it is not known."""
    watch_filter = _watch()
    if watch_filter and watch_filter.started_by:
        return f"JAX's backend was started by {watch_filter.started_by}"
    if watch_filter and not watch_filter.jax_was_imported:
        return "JAX's backend was started by a call that was not recorded (is logging disabled?)"
    return "JAX's backend was started before outlay was imported, so the call that did it is not known"


def _watch() -> _Watch | None:
    for watch_filter in logging.getLogger(_LOGGER).filters:
        if isinstance(watch_filter, _Watch):
            return watch_filter
    return None


_known_flags = ""


def check_flags_once(*, are_known: bool = False) -> None:
    """Raise if XLA would end this process because of `$XLA_FLAGS`: asked once about each value.

    Args:
        are_known: whether XLA has been asked about all flags but those that Outlay has set.

    Raises:
        BackendError: `XLA_FLAGS` holds flags with which JAX does not start.
    """
    global _known_flags
    flags = os.environ.get("XLA_FLAGS", "")
    if flags != _known_flags and not are_known:
        from outlay.core.flag_check import check_flags

        check_flags()
    _known_flags = flags
