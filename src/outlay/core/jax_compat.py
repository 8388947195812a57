"""Every use of JAX that is private or differs between the supported versions, one function each, each with a test."""

from __future__ import annotations

from jax._src import xla_bridge


def backend_is_started() -> bool:
    """Whether JAX has created its backend, after which the number of devices is fixed. Does not create it."""
    return xla_bridge.backends_are_initialized()
