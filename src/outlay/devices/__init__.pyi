from .target import Target as Target
from .hardware import Hardware as Hardware
from .measured import Measured as Measured
from .measured import CollectiveCost as CollectiveCost
from .mesh_info import MeshInfo as MeshInfo
