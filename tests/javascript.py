"""What a script of a page computes, without its page: by node where there is one, else in a browser."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

from tests.chromium import Browser


def computed_by(script: str, expression: str, data: Any, folder: Path) -> Any:
    """Return the value of an expression over `data`, after a script of the pages.

    Args:
        script: the name of the script, such as `price.js`.
        expression: the expression; its value is JSON.
        data: what it reads as `data`.
        folder: a folder for the program.
    """
    text = resources.files("outlay.render").joinpath("templates", script).read_text(encoding="utf-8")
    program = f"{text}\nconst data = {json.dumps(data)};\n"
    node = shutil.which("node")
    if node is None:
        browser = Browser()
        try:
            return json.loads(browser.run(f"(() => {{ {program} return JSON.stringify({expression}); }})()"))
        finally:
            browser.close()
    path = folder / "program.js"
    path.write_text(f"{program}console.log(JSON.stringify({expression}));", encoding="utf-8")
    return json.loads(subprocess.run([node, path], capture_output=True, encoding="utf-8", check=True).stdout)
