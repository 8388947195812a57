# processes
from .jobs.joined import Joined as Joined
from .jobs.join import join as join

# devices -> mesh
from .devices.simulated import simulate as simulate
from .devices.target import Target as Target
from .devices.build import mesh as mesh

# -> layout
from .layout.rule import Rule as Rule
from .layout.layout import Layout as Layout
from .layout.toml import read_layout as read_layout
from .layout.placement import replicate as replicate
from .layout.placement import on as on
from .layout.placement import follow as follow
from .layout.storage import keep as keep
from .layout.storage import recompute as recompute
from .layout.storage import on_host as on_host
from .layout.placement import LeafView as LeafView
from .layout.placement import Choice as Choice
from .layout.placement import CannotPlace as CannotPlace
from .layout.strategies import data_parallel as data_parallel
from .layout.strategies import fsdp as fsdp
from .layout.strategies import zero1 as zero1
from .layout.strategies import zero2 as zero2
from .layout.strategies import tensor_parallel as tensor_parallel
from .layout.strategies import by_module as by_module
from .layout.strategies import by_neuron as by_neuron

# -> plan
from .layout.plan import Plan as Plan

# -> placed state
from .arrays.put import put as put
from .arrays.put import reshard as reshard
from .arrays.callback import from_callback as from_callback
from .arrays.pieces import from_pieces as from_pieces
from .arrays.files import from_file as from_file
from .arrays.scatter import scatter as scatter
from .arrays.scatter import broadcast as broadcast
from .arrays.gather import gather as gather
from .arrays.slicing import slice_of as slice_of
from .arrays.pencil import pencil as pencil

# -> program
from .core.constrain import constrain as constrain
from .core.constrain import name as name
from .program.program import Program as Program
from .program.make import program as program
from .program.manual_collectives import mean_over as mean_over
from .program.manual_collectives import ring_shift as ring_shift
from .program.manual_collectives import sum_scatter as sum_scatter
from .program.manual_collectives import axis_coordinates as axis_coordinates
from .program.halo import halo as halo
from .graph.step_graph import StepGraph as StepGraph
from .graph.step_graph import Part as Part
from .graph.step_graph import Source as Source
from .graph.rollout import Rollout as Rollout
from .train.step import TrainState as TrainState
from .train.step import init_state as init_state
from .models.attention.dot_product import attention as attention
from .train.step import train_step as train_step
from .train.data import TrainData as TrainData
from .train.checkpoint.checkpoints import Checkpoints as Checkpoints
from .train.loop import fit as fit

# -> reports
from .report.show import Show as Show
from .report.show import show as show
from .report.explain.explanation import Explanation as Explanation
from .report.explain.explain import explain as explain
from .analysis.cost.estimate import Estimate as Estimate
from .report.step_time import estimate as estimate
from .report.placed.measure_parts import measure_parts as measure_parts
from .analysis.verify.verification import Verification as Verification
from .analysis.verify.verify import verify as verify

# ready workloads
from .recipes.recipe import Recipe as Recipe
from .search.selection import Selection as Selection
from .recipes.choose import choose as choose

# spiking networks
from .brain.files.read_brain import read_brain as read_brain
from .brain.files.read_brain import read_neuron as read_neuron
from .brain.files.convert import write_brain as write_brain
from .brain.files.nir.read_nir import read_nir as read_nir
from .brain.files.nir.write_nir import write_nir as write_nir
from .brain.run.inputs.closed_loop import ClosedLoop as ClosedLoop
from .brain.run.run_brain import run_brain as run_brain
from .brain.run.brain_run import BrainRun as BrainRun
from .brain.run.recording.recording import Recording as Recording
from .brain.run.brain_recipe import BrainRecipe as BrainRecipe

# what goes wrong
from .core.errors import OutlayError as OutlayError
from .core.errors import BackendError as BackendError
from .core.errors import BackendStartedError as BackendStartedError
from .core.errors import LaunchError as LaunchError
from .core.errors import JoinError as JoinError
from .core.errors import MeshError as MeshError
from .core.errors import TargetError as TargetError
from .core.errors import LayoutError as LayoutError
from .core.errors import PlaceError as PlaceError
from .core.errors import ProgramError as ProgramError
from .core.errors import RecipeError as RecipeError
from .core.errors import RunFolderError as RunFolderError
from .core.errors import OutputError as OutputError
from .core.errors import CheckpointError as CheckpointError
from .core.errors import CheckpointWarning as CheckpointWarning
from .core.errors import BrainError as BrainError
from .core.errors import ShowError as ShowError
from .core.errors import ExplainError as ExplainError
from .core.errors import ChooseError as ChooseError
from .core.errors import VerifyError as VerifyError
