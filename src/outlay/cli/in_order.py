"""The option by which `outlay launch` and `outlay run` show output by steps; alone, for the launcher imports no JAX."""

from __future__ import annotations

from typing import Annotated

import typer

InOrderOption = Annotated[
    bool, typer.Option("--in-order", help="Show the output by steps: of each step process 0's lines, then 1's, ...")
]
