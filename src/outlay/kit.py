"""What applications are written with, beside the line itself: kinds of runs, files, traced programs, reports, commands.

The names stand in `kit.pyi`; each is imported when first used. The guide "Write an application" has them by purpose.
"""

from outlay.core.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__, inside="outlay")
