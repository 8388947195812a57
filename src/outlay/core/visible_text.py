"""Text that a terminal shows and does not obey."""

from __future__ import annotations

import re

# Characters that a terminal obeys instead of showing (C0, DEL, C1), that reverse or break a line (bidirectional marks,
# U+2028), and lone surrogates, which no stream can encode. Newlines and tabs stay: messages are formatted with them.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Escape the control characters of a text, so that no terminal obeys them.

    Everything that Outlay prints goes through here: errors where they become text, tables where they are rendered,
    lines where a command writes them.

    >>> visible("w\x1b]0;title\x07")
    'w\\x1b]0;title\\x07'
    """
    return _OBEYED.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
