"""Be one of several processes: join the others, report to them, learn what has become of them, end together.

The public names are listed in `__init__.pyi`; each is imported on first use.
"""

from outlay.core.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
