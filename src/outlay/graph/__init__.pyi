from .step_graph import StepGraph as StepGraph
from .step_graph import Part as Part
from .step_graph import LoopForm as LoopForm
from .step_graph import SharedStep as SharedStep
from .step_graph import Source as Source
from .graph_loop import GraphLoop as GraphLoop
from .recorded_outputs import RecordedOutput as RecordedOutput
