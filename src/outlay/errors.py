"""Every error and warning that Outlay raises; those of applications that are installed beside it too."""

from typing import Any

from outlay.core.error_types import (
    ArgumentError,
    BackendError,
    BackendStartedError,
    CheckpointError,
    CheckpointWarning,
    ChooseError,
    CompilerAbortError,
    DataError,
    ExplainError,
    JoinError,
    LaunchError,
    LayoutError,
    MeshError,
    OutlayError,
    OutputError,
    PlaceError,
    Problem,
    ProfileError,
    ProgramError,
    RecipeError,
    RunFolderError,
    ShowError,
    TargetError,
    VerifyError,
)


def __getattr__(name: str) -> Any:
    what = f"module 'outlay.errors' has no attribute {name!r}"
    if name.startswith("_"):
        raise AttributeError(what)
    from pkgutil import resolve_name

    from outlay.core.entry_points import entry_points
    from outlay.core.suggest import did_you_mean

    if reference := entry_points("outlay.errors").get(name):
        return resolve_name(reference)
    raise AttributeError(f"{what}: {did_you_mean(name, __all__)}")


def __dir__() -> list[str]:
    from outlay.core.entry_points import entry_points

    return [*__all__, *entry_points("outlay.errors")]


__all__ = [
    "ArgumentError",
    "BackendError",
    "BackendStartedError",
    "CheckpointError",
    "CheckpointWarning",
    "ChooseError",
    "CompilerAbortError",
    "DataError",
    "ExplainError",
    "JoinError",
    "LaunchError",
    "LayoutError",
    "MeshError",
    "OutlayError",
    "OutputError",
    "PlaceError",
    "Problem",
    "ProfileError",
    "ProgramError",
    "RecipeError",
    "RunFolderError",
    "ShowError",
    "TargetError",
    "VerifyError",
]
