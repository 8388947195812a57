"""Schedules of pipelines as data: which stage works on which microbatch at which tick, forward or backward.

The public names are listed in `__init__.pyi`; each is imported on first use.
"""

from outlay.core.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
