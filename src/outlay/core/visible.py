"""Text from elsewhere, made safe to show: names of leaves, contents of files, words of another machine."""

from __future__ import annotations

import re

# What a terminal obeys instead of showing it (C0, DEL, C1), what turns the order of a line around or breaks it, and
# halves of characters, which no stream can write. Newlines and tabs are how our own texts are laid out.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""A text whose control characters are written out, so that no terminal obeys them.

    Everything that Outlay prints goes through here: errors where they become text, tables where they are rendered,
    lines where a command writes them.

    >>> visible("w\x1b]0;title\x07")
    'w\\x1b]0;title\\x07'
    """
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
