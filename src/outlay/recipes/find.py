"""Find by name: recipes, files that are recipes, and commands, of Outlay and of what is installed beside it.

Each is named as text, `module:name`, and imported on first use; `outlay --help` has no time for more. Other packages
name theirs as entry points (`core/entry_points.py`), which are read when a name is not one of Outlay's own, or when
all are listed. A recipe of a user's own is `path/to/file.py:function`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from outlay.core.entry_points import entry_points
from outlay.core.error_types import RecipeError

if TYPE_CHECKING:
    from outlay.recipes.recipe import Recipe

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
            *("dp", "zero1", "fsdp", "hsdp", "tp", "fsdp+tp", "fsdp+tp+sp", "zero1+tp+sp"),
            *("cp", "fsdp+cp", "fsdp+tp+cp", "zero1+tp+sp+cp"),
            *("pp", "pp+tp", "pp+fsdp+tp", "pp+zero1+tp+sp"),
            *("pp+cp", "pp+fsdp+cp", "pp+fsdp+tp+cp", "pp+zero1+tp+sp+cp"),
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


def find_recipe(
    text: str,
    words: Sequence[str] = (),
    known: Sequence[str] = (),
    *,
    record: Sequence[str] = (),
    stride: int | None = None,
) -> Recipe:
    """Make the recipe of a name, of `path/to/file.py:function` or of a file that is one, with its own options.

    Args:
        text: what the user typed.
        words: options of the recipe itself, such as `["--model", "small"]`.
        known: the command's own options, which a mistyped word may have meant.
        record: patterns of what a run records; those of the recipe itself if there are none.
        stride: after how many steps.

    Raises:
        RecipeError: there is no such recipe or option, or the file or function that should make it does not.

    >>> find_recipe("digits").default_layout
    'dp'
    """
    from outlay.recipes.arguments import parameter_types, recipe_arguments

    function = find_function(text)
    is_recorded = bool(record) or stride is not None
    takes_record = is_recorded and "record" in parameter_types(function)  # else the recipe that it makes is told
    if takes_record:
        words = [*words, *(word for pattern in record for word in ("--record", pattern))]
        words += [] if stride is None else ["--stride", str(stride)]
    arguments = recipe_arguments(function, text, words, known) if words else {}
    _check_required(text, function, arguments)
    recipe = _recipe_from(text, function, arguments)
    return with_recording(recipe, record, stride) if is_recorded and not takes_record else recipe


def name_of(recipe: str | Callable[..., Recipe]) -> str:
    """Return the name by which other processes can find a recipe.

    Raises:
        RecipeError: it is a function that no file has at its top level.
    """
    if isinstance(recipe, str):
        return recipe
    if not (inspect.isroutine(recipe) or inspect.isroutine(inspect.unwrap(recipe))):
        raise RecipeError(
            f"this is a {type(recipe).__name__}, which other processes cannot make\n  fix: 'path/to/file.py:function', "
            "or the function: one that returns outlay.Recipe.training(...) or outlay.Recipe(...)"
        )
    file, name = inspect.getsourcefile(inspect.unwrap(recipe)), getattr(recipe, "__qualname__", "")
    if not file or not Path(file).is_file() or not name.isidentifier():
        raise RecipeError(
            f"{name or recipe!r} is not at the top level of a file, where other processes could find it"
            "\n  fix: define the function in a file, and pass it or 'path/to/file.py:function'"
        )
    return f"{file}:{name}"


def with_recording(recipe: Recipe, record: Sequence[str] = (), stride: int | None = None) -> Recipe:
    """Return a recipe that records what is asked for, and as before what is not.

    Raises:
        RecipeError: there is a stride, and nothing that is recorded.
    """
    if not record and stride is None:
        return recipe
    if not (record or recipe.record):
        raise RecipeError(
            f"stride={stride}, and {recipe.name!r} records nothing\n  fix: --record too, such as 'params.**.bias'"
        )
    return recipe.recording(record or recipe.record, recipe.stride if stride is None else stride)


def _recipe_from(text: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Recipe:
    if recipe_named(text) or ending_of(text):  # installed, whose errors say what is wrong by themselves
        return function(**arguments)
    from outlay.recipes.recipe_file import made_by

    return made_by(text, function, arguments)


def _check_required(text: str, function: Callable[..., Any], arguments: dict[str, Any]) -> None:
    parameters = inspect.signature(function).parameters.values()
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    missing = [name for name in required if name not in arguments]
    if missing:
        name = getattr(function, "__name__", "recipe")
        raise RecipeError(
            f"{text} takes {', '.join(missing)}, for which no value was given"
            f"\n  fix: {' '.join(f'--{m.replace(chr(95), chr(45))} VALUE' for m in missing)}, or a default: "
            f"def {name}({', '.join(f'{m}=...' for m in missing)})"
        )


def find_function(text: str) -> Callable[..., Any]:
    """Find the function that makes a recipe, without calling it.

    Raises:
        RecipeError: there is none.
    """
    if ".py" in text:
        file, _, function = text.rpartition(":") if not text.endswith(".py") else (text, "", "")
        from outlay.recipes.recipe_file import function_in

        return function_in(file, function)
    if ending := ending_of(text):
        return maker_of(text, ending)(Path(text))
    if reference := recipe_named(text):
        return resolve_name(reference)
    if text in ABSENT:
        raise RecipeError(not_installed(text, text))
    from outlay.core.suggest import did_you_mean

    raise RecipeError(
        f"there is no recipe {text!r}: {did_you_mean(text, recipes())}"
        f"\n  fix: name one of these, a function of your own as path/to/file.py:function, or {FILE_WORDS}"
    )
