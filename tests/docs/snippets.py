"""Run the Python of a Markdown page in one namespace, over 8 simulated devices: `python snippets.py page.md`."""

import os
import re
import sys
from pathlib import Path

_FENCE = re.compile(r"^```(?P<language>\S*).*\n(?P<body>(?:.*\n)*?)^```$", re.MULTILINE)
_CELL_OPTION = re.compile(r"^:[a-z-]+:")


def blocks(text: str, language: str) -> list[tuple[int, str]]:
    """The fenced blocks of a language, with the number of the line before each body."""
    fences = [match for match in _FENCE.finditer(text) if match["language"] == language]
    return [(text.count("\n", 0, match.start("body")), match["body"]) for match in fences]


def script(text: str, language: str) -> str:
    """All blocks of a language as one script, each line at the number it has on the page, so tracebacks point there."""
    lines: list[str] = []
    for start, body in blocks(text, language):
        lines += [""] * (start - len(lines))
        lines += ["" if _CELL_OPTION.match(line) else line for line in body.splitlines()]
    return "\n".join(lines) + "\n"


def _main(page: Path, language: str) -> None:
    import outlay

    code = compile(script(page.read_text(encoding="utf-8"), language), str(page), "exec")
    outlay.simulate(8)
    os.chdir(page.parent)
    exec(code, {"__name__": "__main__"})


if __name__ == "__main__":
    _main(Path(sys.argv[1]).resolve(), sys.argv[2])
