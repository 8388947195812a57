"""Check what a Brain is made of, before anything is asked of it: modules by name, and a list of connections."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

from outlay.brain.connections import Connection
from outlay.brain.module import BrainError, Module
from outlay.errors import Problem
from outlay.kit import counted


def check_kinds(modules: Any, connections: Any) -> None:
    """Raise unless modules are `Module`s by name, and connections a list of `Connection`s.

    Raises:
        BrainError: they are something else; the message lists all.
    """
    problems = []
    if not isinstance(modules, Mapping):
        what = f"they are a {type(modules).__name__}, and each needs a name"
        problems.append(Problem("argument", "modules", what, 'a dict by name, modules={"A": Neuron(4)}'))
    for name, module in modules.items() if isinstance(modules, Mapping) else ():
        if inspect.isclass(module):
            what, fix = f"it is the class {module.__name__}", f"one of it: {module.__name__}(...)"
        elif not isinstance(module, Module):
            what, fix = f"it is {reprlib.repr(module)}, which is no Module", "a Module, such as Neuron(4)"
        else:
            continue
        problems.append(Problem("module", str(name), what, fix))
    is_listed = isinstance(connections, Iterable) and not isinstance(connections, str | Mapping)
    if not is_listed:
        fix = 'a list, connections=[Connection("A:out_spikes", "B:in_spikes")]'
        problems.append(Problem("argument", "connections", f"they are {reprlib.repr(connections)}", fix))
    for number, connection in enumerate(connections if is_listed else ()):
        if not isinstance(connection, Connection):
            where, what = f"connections[{number}]", f"it is {reprlib.repr(connection)}"
            problems.append(Problem("connection", where, what, _connection_fix(connection)))
    if problems:
        raise BrainError(f"this Brain cannot be built: {counted(len(problems), 'problem')}", problems)


def _connection_fix(given: Any) -> str:
    """Say how a connection is written in Python that was given as text or as a pair."""
    ends = [end.strip() for end in given.split("->")] if isinstance(given, str) else given
    if isinstance(ends, list | tuple) and len(ends) >= 2 and all(isinstance(end, str) for end in ends[:2]):
        target, _, delay = ends[1].partition(" after ")
        number = delay.removesuffix("ms").strip()
        late = f", delay={number}" if number else ""
        return f'Connection("{ends[0]}", "{target.strip()}"{late}); only a file has them as text'
    return 'Connection("A:out_spikes", "B:in_spikes")'
