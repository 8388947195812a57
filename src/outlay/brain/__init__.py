"""Spiking networks as graphs of modules, written for one device, and their runs.

The public names are listed in `__init__.pyi`; each is imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
