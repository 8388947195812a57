"""Arrays where the plan says: initialized there, put, resharded; from pieces and files; sliced, gathered, scattered.

The public names stand in `__init__.pyi`; each is imported when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
