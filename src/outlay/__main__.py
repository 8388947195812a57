"""`outlay` and `python -m outlay`: Ctrl-C is answered before anything that takes time is imported."""

from __future__ import annotations

import sys

from outlay.cli import interrupt


def main() -> None:
    """Run the `outlay` command."""
    try:
        interrupt.answer()
        from outlay.cli.main import main as command

        command()
    except BaseException:  # imports make other errors of it, or catch it
        if not interrupt.has_come():
            raise
        print("stopped", file=sys.stderr)
        interrupt.leave(interrupt.STOPPED)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the working folder: a json.py there is no part of Outlay
    main()
