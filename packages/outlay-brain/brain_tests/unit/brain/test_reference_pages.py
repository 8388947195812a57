"""The pages of the reference about Brains say what is there."""

import re
from pathlib import Path

from outlay.brain.files.toml_read import KEYS, read_toml
from outlay.brain.registry import library

REFERENCE = Path(__file__).parents[5] / "docs" / "reference"


def test_every_named_class_has_its_place_in_the_reference():
    page = (REFERENCE / "brain.md").read_text(encoding="utf-8")
    listed = re.findall(r"^### `(\w+)`\n\n```{eval-rst}\n\.\. autoclass:: (\S+)$", page, re.MULTILINE)
    named = [
        (name, f"outlay.brain.{cls}")
        for file in library()
        for name, cls in re.findall(
            r'^@register\("(\w+)".*\)\n@dataclass\(frozen=True\)\nclass (\w+)',
            Path(file.__file__ or "").read_text(),
            re.MULTILINE,
        )
    ]
    assert sorted(listed) == sorted(named)


def test_the_example_of_the_format_is_one():
    page = (REFERENCE / "brain_file.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    brain = read_toml(example, name="model.toml", folder=Path())
    assert list(brain.modules) == ["eye", "excitatory", "inhibitory", "action"]
    for key in KEYS:
        assert re.search(rf"^\[?{key}\b|`{key}`", page, re.MULTILINE), f"{key} is not described"
