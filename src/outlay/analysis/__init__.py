"""Facts about compiled programs: what the compiler wrote, its work, its cost on a target, and proofs of equality.

The public names are listed in `__init__.pyi`; each is imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
