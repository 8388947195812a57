"""Templates: settings that several modules share, merged with a module's own when read, and set apart when written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outlay.brain.files.settings import TYPE
from outlay.kit import KeyPath, did_you_mean

USE = "use"
TEMPLATES = "templates"
Table = dict[str, Any]
"""Settings by the keys of a file; a component is a table in it."""


@dataclass(frozen=True)
class Merged:
    """The settings of one module, merged with its templates.

    Attributes:
        table: the settings.
        written: where each of them stands in the file: path within the module -> path in the file.
    """

    table: dict[str, Any]
    written: dict[KeyPath, KeyPath]


@dataclass
class Templates:
    """The templates of a file.

    Attributes:
        tables: what it says under `templates`.
        used: those that some module or template uses.
    """

    tables: Mapping[str, Any]
    used: set[str] = field(default_factory=set)

    def merge(self, table: Mapping[str, Any], path: KeyPath, problems: list[tuple[KeyPath, str, str]]) -> Merged:
        """Merge a table with the template that it uses, which may itself use one.

        Args:
            table: the table of a module or a template.
            path: where it stands in the file.
            problems: takes what is wrong with `use`: where, what, fix.
        """
        below = self._below(table, path, problems, ())
        return _over(below, table, path)

    def _below(
        self, table: Mapping[str, Any], path: KeyPath, problems: list[tuple[KeyPath, str, str]], chain: tuple[str, ...]
    ) -> Merged:
        name = table.get(USE)
        if name is None:
            return Merged({}, {})
        if not isinstance(name, str) or not isinstance(self.tables.get(name), Mapping):
            problems.append(((*path, USE), f"there is no template {name!r}", did_you_mean(str(name), self.tables)))
            return Merged({}, {})
        self.used.add(name)
        if name in chain:
            around = " -> ".join((*chain[chain.index(name) :], name))
            problems.append(((*path, USE), f"templates that use each other: {around}", "one of them without `use`"))
            return Merged({}, {})
        template, at = self.tables[name], (TEMPLATES, name)
        return _over(self._below(template, at, problems, (*chain, name)), template, at)


def _over(below: Merged, table: Mapping[str, Any], path: KeyPath) -> Merged:
    """Lay a table over another: its keys win, and inner tables of the same type are merged too."""
    merged, written = dict(below.table), dict(below.written)
    for key, value in table.items():
        # Only a module or a template uses a template; deeper, `use` would be a setting.
        if key == USE and len(path) == 2:
            continue
        under = merged.get(key)
        if _same_type(value, under):
            inside = {at[1:]: to for at, to in written.items() if at[0] == key and len(at) > 1}
            inner = _over(Merged(dict(under or {}), inside), value, (*path, key))
            merged[key] = inner.table
            written |= {(key, *at): to for at, to in inner.written.items()}
        else:
            merged[key] = value
            written = {at: to for at, to in written.items() if at[0] != key}
            written |= {(key, *at): (*path, key, *at) for at in _paths(value)}
        written[(key,)] = (*path, key)
    return Merged(merged, written)


def _paths(value: Any) -> list[KeyPath]:
    """Return the paths of all keys within a value."""
    if not isinstance(value, Mapping):
        return []
    return [(key, *rest) for key, inner in value.items() for rest in ((), *_paths(inner))]


def shared_settings(tables: Mapping[str, Table]) -> dict[str, Table]:
    """Return a template for each type of several modules: the settings that they have in common."""
    by_type: dict[str, list[Table]] = {}
    for table in tables.values():
        by_type.setdefault(table[TYPE], []).append(table)
    return {name: _common(same) for name, same in by_type.items() if len(same) > 1}


def _common(tables: list[Table]) -> Table:
    first, *others = tables
    common = {key: value for key, value in first.items() if all(key in o and o[key] == value for o in others)}
    inner = {
        key: _common([table[key] for table in tables])
        for key, value in first.items()
        if key not in common and all(_same_type(table.get(key), value) for table in others)
    }
    return {key: common.get(key, inner.get(key)) for key in first if key in common or key in inner}


def own_settings(table: Table, shared: Mapping[str, Table]) -> Table:
    """Return the settings of a module that its template does not have."""
    template = shared.get(table[TYPE])
    return table if template is None else {USE: table[TYPE], **_beyond(table, template)}


def _beyond(table: Table, template: Table) -> Table:
    own: Table = {}
    for key, value in table.items():
        if _same_type(value, template.get(key)):
            if inner := _beyond(value, template[key]):
                own[key] = inner
        elif value != template.get(key):
            own[key] = value
    return own


def _same_type(table: Any, other: Any) -> bool:
    """Return whether both are tables of one type; one without a type takes that of the other."""
    both = isinstance(table, Mapping) and isinstance(other, Mapping)
    return both and table.get(TYPE, other.get(TYPE)) == other.get(TYPE)
