"""Every error and warning that Outlay raises."""

from outlay.brain.module import BrainError
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


def __getattr__(name: str) -> object:
    what = f"module 'outlay.errors' has no attribute {name!r}"
    if name.startswith("_"):
        raise AttributeError(what)
    from outlay.core.suggest import did_you_mean

    raise AttributeError(f"{what}: {did_you_mean(name, __all__)}")


__all__ = [
    "ArgumentError",
    "BackendError",
    "BackendStartedError",
    "BrainError",
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
