from .run_kind import Result as Result
