"""Ready workloads: the only place where models, data and layouts meet.

The public names stand in `__init__.pyi`; each is imported when it is first used.
"""

from outlay.core.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
