"""What XLA refuses in `$XLA_FLAGS`, asked before it ends the process that starts it.

XLA reads the variable when its first client is made. At a flag it does not know, or a value it cannot read, it aborts
the process, which no Python code can catch; so another process makes a client first.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys

from outlay.core.error_types import BackendError
from outlay.core.input_file import read_text
from outlay.core.quantities import counted
from outlay.core.runtime_flags import FLAGS_OF_OUTLAY, flags_of_library, read_flags, versions, xla_library
from outlay.core.suggest import did_you_mean

# A fifth of a second. Through `import jax`, which also looks for plugins, it takes ten times as long.
_START_XLA = "from jaxlib import xla_client; xla_client.make_cpu_client()"
ACCEPTED = "OUTLAY_ACCEPTED_FLAGS"
"""Identifies the flags that XLA has taken. Children inherit it, so the processes of a job do not all ask again."""
_REFUSED = re.compile(
    r"Unknown flags? in XLA_FLAGS: .*|Couldn't interpret value .*|Could not open file .*|Flag parsing failed"
)
# A line of the list that XLA prints when it cannot read a value: `--name=default   type   description`.
_LISTED = re.compile(r"^\t--(?P<name>\w+)=(?P<default>\S*)\s+(?P<type>bool|int32|int64|float|string)\t", re.MULTILINE)


def check_flags() -> None:
    """Raise BackendError if XLA would end this process because of `$XLA_FLAGS`; the message lists each refused flag.

    XLA is not asked, and nothing is spent, where Outlay alone has set flags, and where this process, or one that it
    comes from, has asked about the same flags.
    """
    text = os.environ.get("XLA_FLAGS", "")
    accepted = _fingerprint(text)
    if accepted and os.environ.get(ACCEPTED) != accepted:
        message = _problems(text)
        if message:
            raise BackendError(message)
        os.environ[ACCEPTED] = accepted


def error_of_flags(text: str) -> str:
    """Return XLA's error message for a value of `$XLA_FLAGS`; empty if it accepts the value."""
    refusal = _REFUSED.search(_answer(text))
    return refusal[0] if refusal else ""


def _fingerprint(text: str) -> str:
    """Return what tells these flags and this XLA from others; empty if Outlay alone has set flags.

    A text that is the path of a file stands for what the file holds.
    """
    # As written: of a flag that is named twice XLA reads both values, and may refuse the first.
    words = _flags(text) or text.split()
    foreign = [word for word in words if not _is_outlays(word)]
    if not foreign:
        return ""
    library = xla_library()
    installed = (str(library), library.stat().st_mtime_ns) if library else versions(("jaxlib",))
    return hashlib.sha256(repr((installed, foreign)).encode()).hexdigest()[:16]


def _is_outlays(word: str) -> bool:
    return all(name in FLAGS_OF_OUTLAY and value.isdecimal() for name, value in read_flags(word).items())


def _problems(text: str) -> str:
    """Return the message of the error for this value of the variable; empty if XLA takes it."""
    refusal = error_of_flags(text)
    if not refusal:
        return ""
    # XLA stops at the first kind of problem and does not name a refused text, so each flag is asked about alone.
    answers = {flag: _answer(flag) for flag in _flags(text)}
    refused = {flag: answer for flag, answer in answers.items() if _REFUSED.search(answer)}
    if not refused:
        problem = f"XLA does not take XLA_FLAGS={text}, so JAX cannot start"
        return f"{problem}\n  {refusal}\n  fix: correct XLA_FLAGS, or unset it"
    library = xla_library()
    known = sorted(flags_of_library(library)) if library else []
    return "\n".join(
        [
            f"XLA_FLAGS holds {counted(len(refused), 'flag')} that XLA does not take, so JAX cannot start",
            *(f"  {flag}: {_explanation(flag, answer, known)}" for flag, answer in refused.items()),
            "  fix: correct the flag, or take it out of XLA_FLAGS; flags come and go with versions, and this is "
            f"jaxlib {versions(('jaxlib',))['jaxlib']}",
        ]
    )


def _explanation(flag: str, answer: str, known: list[str]) -> str:
    name, _, value = flag.removeprefix("--").partition("=")
    listed = {entry["name"]: entry for entry in _LISTED.finditer(answer)}
    if name in listed:
        entry = listed[name]
        return f"{value} is not a value of this {entry['type']} flag, whose default is {entry['default'] or 'empty'}"
    hint = did_you_mean(name, known)
    return f"XLA does not know it; {hint}" if hint.startswith("did") else "XLA does not know it"


def _answer(text: str) -> str:
    """Return what a process prints that starts XLA with these flags, and fails."""
    environment = {**os.environ, "XLA_FLAGS": text}
    # -P: a file jaxlib.py in the current folder is not imported.
    command = [sys.executable, "-P", "-c", _START_XLA]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)
    return done.stderr if done.returncode else ""


def _flags(text: str) -> list[str]:
    """Return the flags as written; a text that does not begin with a dash is the path of the file that holds them."""
    if text.strip() and not text.lstrip().startswith("-"):
        try:
            text = read_text(text.strip())
        except (OSError, ValueError):
            return []
    return text.split()
