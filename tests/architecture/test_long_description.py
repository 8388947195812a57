"""What an index of packages shows of Outlay: every link and picture of it leads somewhere from there."""

import re
from pathlib import Path

from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]


def targets(text: str) -> list[str]:
    """Return where the links and pictures of a page lead."""
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    return re.findall(r'(?:href|src)="([^"]*)"', html)


def test_the_long_description_is_the_readme_without_links_that_lead_nowhere():
    core = ProjectMetadata(str(ROOT), PluginManager()).core
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [target for target in targets(readme) if not target.startswith("https://")]  # there is something to do
    assert core.readme_content_type == "text/markdown"
    assert [target for target in targets(core.readme) if not target.startswith("https://")] == []
    code = re.findall(r"^```.*?^```", readme, flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"^```.*?^```", core.readme, flags=re.DOTALL | re.MULTILINE) == code  # as it was
    assert "lay out your own model; coming from plain JAX" in core.readme
