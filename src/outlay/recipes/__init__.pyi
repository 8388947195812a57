from .run_kind import Result as Result
from .smaller_mesh import SmallerMesh as SmallerMesh
