"""Write `caught_mistakes.md`: run each broken rule set of the tests and show what Outlay says, word by word."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
if str(HERE.parent) not in sys.path:  # run as a script, from anywhere
    sys.path.insert(0, str(HERE.parent))

from tests.unit.layout.broken_rule_sets import BATCH, BROKEN_RULE_SETS, MESH, STATE, BrokenRuleSet

from outlay.core.paths import flatten_paths

INTRODUCTION = """\
# Mistakes that Outlay catches

A rule that does nothing is worse than an error: the program runs, and every device holds everything. So a layout that
does not fit its tree is refused, and the message says where, with the numbers, and which edit fixes it. Each message
below is what Outlay really says: this page is made by `python docs/make_caught_mistakes.py`, and a test compares them.

All of them are about this tree on {mesh}:

```
{tree}
```
"""


def page() -> str:
    """The whole page."""
    leaves = [*flatten_paths(STATE)[0], *flatten_paths({"batch": BATCH})[0]]
    width = max(len(path) for path, _ in leaves)
    tree = "\n".join(f"{path:<{width}}  {leaf.shape} {leaf.dtype}" for path, leaf in leaves)
    rows = [
        "| mistake | what was written | what Outlay calls it |",
        "|---|---|---|",
        *(f"| [{b.name}](#{b.name.replace(' ', '-')}) | `{b.written}` | {_kind(b)} |" for b in BROKEN_RULE_SETS),
    ]
    introduction = INTRODUCTION.format(mesh=_mesh(), tree=tree)
    return "\n".join([introduction, *rows, "", *map(_section, BROKEN_RULE_SETS)])


def _mesh() -> str:
    return "a mesh " + ", ".join(f"{name}={size}" for name, size in MESH.shape.items())


def _kind(broken: BrokenRuleSet) -> str:
    return broken.kind if broken.num_problems == 1 else f"{broken.kind}, {broken.num_problems} times"


def _section(broken: BrokenRuleSet) -> str:
    note = (
        "" if broken.state is STATE else "\nHere the moments stand under `slots`, a name that Outlay does not know.\n"
    )
    return f"""\
## {broken.name.capitalize()}
{note}
```python
{broken.written}
```

```
LayoutError: {broken.error()}
```
"""


if __name__ == "__main__":
    (HERE / "caught_mistakes.md").write_text(page())
