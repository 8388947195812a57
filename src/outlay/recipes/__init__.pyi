from .run_result import Result as Result
from .smaller_mesh import SmallerMesh as SmallerMesh
