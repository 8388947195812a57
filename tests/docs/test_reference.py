import inspect
import re
from pathlib import Path

import outlay

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def test_the_reference_lists_exactly_the_public_names():
    pages = "".join(page.read_text(encoding="utf-8") for page in REFERENCE.glob("*.md"))
    listed = re.findall(r"^\.\. auto(?:function|class|exception|data):: outlay\.([\w.]+)$", pages, re.MULTILINE)
    facades = [name for name in outlay.__all__ if inspect.ismodule(getattr(outlay, name))]
    public = {name for name in outlay.__all__ if name not in facades}
    public |= {
        f"{facade}.{name}" for facade in facades for name in getattr(outlay, facade).__all__ if name not in public
    }
    # The components of Brains are listed by the files that define them, beside the names that they have in files.
    given = {name if name.count(".") < 2 else f"{name.partition('.')[0]}.{name.rpartition('.')[2]}" for name in listed}
    assert public - given == set()
    assert {name for name in given - public if "." not in name} == set()
