"""Spiking networks as graphs of modules, written for one device, and their runs.

The public names are listed in `__init__.pyi`; each is imported on first use.
"""

from outlay.kit import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
