"""What is plugged in from higher folders: recipes by name, files that are recipes, and commands.

Each is named as text, `module:name`, and imported on first use. Folders above `recipes/` and `cli/` may use all of
both, so these cannot import them; and `outlay --help` has no time for it.
"""

from __future__ import annotations

import importlib
from typing import Any

# Texts, because an import from here would turn the order of the folders around (decision 37).
RECIPES = {
    "digits": "outlay.recipes.digits:digits",
    "lm": "outlay.recipes.lm:lm",
    "resnet": "outlay.examples.resnet:resnet",
    "gan": "outlay.examples.gan:gan",
    "lora": "outlay.examples.lora:lora",
    "ab_brain": "outlay.brain.run.from_file:ab_brain",
}
"""The recipes that come with Outlay: name to the function that makes one."""
LAYOUTS = {
    "digits": ("dp", "replicated", "zero1", "zero2", "fsdp", "fsdp+tp"),
    "lm": ("dp", "zero1", "fsdp", "hsdp", "tp", "fsdp+tp", "fsdp+tp+sp"),
    "resnet": ("dp", "replicated", "zero1", "zero2", "fsdp"),
    "gan": ("dp", "replicated", "zero1", "zero2", "fsdp"),
    "lora": ("fsdp", "dp", "tp"),
    "ab_brain": ("copies", "by-neuron", "by-module"),
}
"""The layouts of these recipes, for a shell that completes a command: to make a recipe takes a second."""
FILES = {
    ".toml": "outlay.brain.run.from_file:recipe_of",
    ".scfg": "outlay.brain.run.from_file:recipe_of",
}
"""Files that are recipes by themselves: from the extension to the maker of the function for such a path."""
FILE_WORDS = "the file of a Brain (.toml, .scfg)"
"""The same in words, for help and messages."""
COMMANDS = ("outlay.brain.brain_command:brain",)
"""Groups of commands besides those of `cli/`."""
EXTRAS = {"gymnasium": "brain", "nir": "brain"}
"""Packages that these need, and the extra that installs each."""


def load(reference: str) -> Any:
    """Import what `module:name` refers to.

    Args:
        reference: one of the texts above.

    Example:
        >>> load("outlay.recipes.digits:digits").__name__
        'digits'
    """
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
