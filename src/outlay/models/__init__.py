"""Reference models, written for one device; none of them knows a mesh.

The public names are listed in `__init__.pyi`; each is imported on first use.
"""

from outlay.core.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
