"""Arrays where a plan puts them: initialized, put, resharded; from pieces and files; sliced, gathered, scattered.

The public names are listed in `__init__.pyi`; each is imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
