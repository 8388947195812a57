"""What there is by name: recipes, files that are recipes, and commands, of Outlay and of what is installed beside it.

Each is named as text, `module:name`, and imported on first use; `outlay --help` has no time for more. Other packages
name theirs as entry points (`core/entry_points.py`), which are read when a name is not one of Outlay's own, or when
all are listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any

from outlay.core.entry_points import entry_points
from outlay.core.error_types import RecipeError

RECIPES: Mapping[str, str] = MappingProxyType(
    {
        "digits": "outlay.recipes.digits:digits",
        "lm": "outlay.recipes.lm:lm",
        "resnet": "outlay.examples.resnet:resnet",
        "gan": "outlay.examples.gan:gan",
        "lora": "outlay.examples.lora:lora",
        "moe": "outlay.examples.moe:moe",
    }
)
"""The recipes that come with Outlay: name to the function that makes one."""
LAYOUTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "digits": ("dp", "replicated", "zero1", "zero2", "fsdp", "fsdp+tp"),
        "lm": (
            *("dp", "zero1", "fsdp", "hsdp", "tp", "fsdp+tp", "fsdp+tp+sp"),
            *("cp", "fsdp+cp", "fsdp+tp+cp"),
            *("pp", "pp+tp", "pp+fsdp+tp", "pp+cp", "pp+fsdp+cp", "pp+fsdp+tp+cp"),
        ),
        "resnet": ("dp", "replicated", "zero1", "zero2", "fsdp"),
        "gan": ("dp", "replicated", "zero1", "zero2", "fsdp"),
        "lora": ("fsdp", "dp", "tp"),
        "moe": ("ep+fsdp", "ep", "ep+fsdp+tp", "pp+ep+fsdp", "dp", "fsdp"),
    }
)
"""The layouts of these recipes, for a shell that completes a command: to make a recipe takes a second."""
EXTRAS = {"gymnasium": "brain", "nir": "brain", "outlay.brain": "brain"}
"""Packages and modules of the applications that are released together with Outlay, and the extra that installs each."""
ABSENT = {"ab_brain": "brain", ".scfg": "brain", ".toml": "brain", "brain": "brain"}
"""Recipes, files and commands of these applications, and the extra that installs each."""
FILE_WORDS = "the file of a Brain (.toml, .scfg)"
"""Their files in words, for help and messages."""


def recipes() -> dict[str, str]:
    """Return all recipes by name, those of installed packages too."""
    return {**entry_points("outlay.recipes"), **RECIPES}


def recipe_named(name: str) -> str | None:
    """Return the reference of a recipe, or None; an installed package is asked only for what Outlay does not have."""
    return RECIPES.get(name) or entry_points("outlay.recipes").get(name)


def layouts_of(recipe: str) -> tuple[str, ...]:
    """Return the layouts of a recipe that is known by name; of others, none."""
    if recipe in LAYOUTS:
        return LAYOUTS[recipe]
    reference = entry_points("outlay.layouts").get(recipe)
    return tuple(resolve_name(reference)) if reference else ()


def file_endings() -> tuple[str, ...]:
    """Return the endings of files that are recipes by themselves, such as `.toml`."""
    return tuple(entry_points("outlay.files"))


def ending_of(text: str) -> str | None:
    """Return the ending of a recipe that is itself a file that an application reads, or would read; None for others."""
    if text in RECIPES:
        return None
    known = (*(name for name in ABSENT if name.startswith(".")), *file_endings())
    return next((ending for ending in known if text.endswith(ending)), None)


def maker_of(text: str, ending: str) -> Any:
    """Return what makes the recipe function of a file's path.

    Args:
        text: the file.
        ending: what its name ends with.

    Raises:
        RecipeError: no installed package reads such files.
    """
    if reference := entry_points("outlay.files").get(ending):
        return resolve_name(reference)
    raise RecipeError(not_installed(text, ending))


def commands() -> Mapping[str, str]:
    """Return the groups of commands of installed packages, by name."""
    return entry_points("outlay.commands")


def not_installed(what: str, name: str) -> str:
    """Return the message for a recipe, file or command of an application that is not installed.

    Args:
        what: what the user wrote.
        name: its name in `ABSENT`.

    >>> print(not_installed("model.scfg", ".scfg"))
    model.scfg needs outlay-brain, which is not installed
      fix: pip install 'outlay[brain]'
    """
    return f"{what} needs outlay-{ABSENT[name]}, which is not installed\n  fix: pip install 'outlay[{ABSENT[name]}]'"
