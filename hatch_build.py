"""What the wheel says of the project: the README, without what leads nowhere outside of the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^]]*)\]\((?P<target>[^)\s]*)\)")


_END = "\nThe documentation named here is in the folder `docs` of the source distribution.\n"


class LongDescription(MetadataHookInterface):
    """Hatchling calls it for each build: the project has no address on the web that links could begin with."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the long description."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": without_relative_links(text) + _END}


def without_relative_links(text: str) -> str:
    """Replace links and pictures that lead to files of the repository by their texts.

    >>> without_relative_links("[a page](docs/a.md), [JAX](https://jax.dev), ![a step](docs/b.png)")
    'a page, [JAX](https://jax.dev), *In the repository, a picture: a step.*'
    """
    return _LINK.sub(_as_text, text)


def _as_text(link: re.Match[str]) -> str:
    if link["target"].startswith(("https://", "mailto:", "#")):
        return link[0]
    return f"*In the repository, a picture: {link['text']}.*" if link["picture"] else link["text"]
