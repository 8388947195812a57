# processes
from .jobs.joined import Joined as Joined
from .jobs.join import join as join
from .jobs.heartbeat import beat as beat

# devices -> mesh
from .devices.simulated import simulate as simulate
from .devices.target import Target as Target
from .devices.build import mesh as mesh

# -> layout
from .layout.rule import Rule as Rule
from .layout.layout import Layout as Layout
from .layout.read_layout import read_layout as read_layout
from .layout.placement import replicate as replicate
from .layout.placement import on as on
from .layout.placement import follow as follow
from .layout.placement import keep as keep
from .layout.placement import recompute as recompute
from .layout.placement import on_host as on_host
from .layout.placement import LeafView as LeafView
from .layout.placement import Choice as Choice
from .layout.placement import CannotPlace as CannotPlace
from .layout.strategies import data_parallel as data_parallel
from .layout.strategies import fsdp as fsdp
from .layout.strategies import zero1 as zero1
from .layout.strategies import zero2 as zero2
from .layout.strategies import tensor_parallel as tensor_parallel
from .layout.strategies import by_module as by_module
from .layout.strategies import by_rows as by_rows
from .layout.from_annotations import from_annotations as from_annotations

# -> plan
from .layout.plan import Plan as Plan

# -> placed state
from .arrays.put import put as put
from .core.array_leaves import as_model as as_model
from .arrays.put import reshard as reshard

# -> program
from .core.constrain import constrain as constrain
from .core.constrain import name as name
from .core.whole_batch import whole_batch as whole_batch
from .program.program import Program as Program
from .program.make import program as program
from .train.step import TrainState as TrainState
from .train.step import init_state as init_state
from .models.attention.dot_product import attention as attention
from .train.step import train_step as train_step
from .train.data import TrainData as TrainData
from .train.buckets import BucketedData as BucketedData
from .train.checkpoint.checkpoints import Checkpoints as Checkpoints
from .train.checkpoint.read_weights import read_weights as read_weights
from .train.loop import fit as fit
from .train.recording import Recording as Recording
from .train.patience import Patience as Patience
from .train.evaluate import evaluate as evaluate

# -> reports
from .report.show import Show as Show
from .report.show import show as show
from .report.explain.explanation import Explanation as Explanation
from .report.explain.explain import explain as explain
from .analysis.cost.estimate import Estimate as Estimate
from .report.explain.explain import estimate as estimate
from .analysis.parts.measure_parts import measure_parts as measure_parts
from .report.profile.profiled import Profile as Profile
from .report.profile.profile import profile as profile
from .analysis.verify.verification import Verification as Verification
from .analysis.verify.verify import verify as verify

# ready workloads
from .recipes.recipe import Recipe as Recipe
from .recipes.run import run as run
from .search.fix_activations import Fix as Fix
from .search.fix_activations import fix as fix
from .search.selection import Selection as Selection
from .recipes.choose import choose as choose

# what goes wrong
from .core.error_types import OutlayError as OutlayError

# more, by what it is about
from . import arrays as arrays
from . import datasets as datasets
from . import collectives as collectives
from . import graph as graph
from . import brain as brain
from . import errors as errors
