# processes
from .launch.joined import Joined as Joined
from .launch.join import join as join

# devices -> mesh
from .meshes.simulated import simulate as simulate
from .meshes.target import Target as Target
from .meshes.build import mesh as mesh

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
from .place.put import put as put
from .place.put import reshard as reshard
from .place.callback import from_callback as from_callback
from .place.pieces import from_pieces as from_pieces
from .place.files import from_file as from_file
from .place.scatter import scatter as scatter
from .place.scatter import broadcast as broadcast
from .place.gather import gather as gather
from .place.slicing import slice_of as slice_of
from .place.pencil import pencil as pencil

# -> program
from .core.constrain import constrain as constrain
from .core.constrain import name as name
from .execute.program import Program as Program
from .execute.make import program as program
from .execute.collectives import mean_over as mean_over
from .execute.collectives import ring_shift as ring_shift
from .execute.collectives import sum_scatter as sum_scatter
from .execute.collectives import axis_coordinates as axis_coordinates
from .execute.halo import halo as halo
from .core.step_graph import StepGraph as StepGraph
from .core.step_graph import Part as Part
from .core.step_graph import Source as Source
from .execute.rollout import Rollout as Rollout
from .train.state import TrainState as TrainState
from .train.state import init_state as init_state
from .train.step import train_step as train_step
from .train.data import TrainData as TrainData
from .train.checkpoint.checkpoints import Checkpoints as Checkpoints
from .train.loop import fit as fit

# -> reports
from .report.show import Show as Show
from .report.show import show as show
from .report.explain.explanation import Explanation as Explanation
from .report.explain.explain import explain as explain
from .report.estimate.facts import Estimate as Estimate
from .report.step_time import estimate as estimate
from .report.placed.measure import measure_parts as measure_parts
from .report.verify.verification import Verification as Verification
from .report.verify.verify import verify as verify

# ready workloads
from .recipes.recipe import Recipe as Recipe
from .search.selection import Selection as Selection
from .recipes.choose import choose as choose

# spiking networks
from .brain.files.read import read_brain as read_brain
from .brain.files.read import read_neuron as read_neuron
from .brain.files.write import write_brain as write_brain
from .brain.files.nir.read import read_nir as read_nir
from .brain.files.nir.write import write_nir as write_nir
from .recipes.brain.inputs.closed_loop import ClosedLoop as ClosedLoop
from .recipes.brain.run_brain import run_brain as run_brain
from .recipes.brain.brain_run import BrainRun as BrainRun
from .recipes.brain.recording.recording import Recording as Recording
from .recipes.brain.brain_recipe import BrainRecipe as BrainRecipe

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
