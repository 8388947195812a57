# processes, devices -> mesh
from .jobs.join import join as join
from .devices.simulated import simulate as simulate
from .devices.build import mesh as mesh

# -> layout
from .layout.rule import Rule as Rule
from .layout.layout import Layout as Layout
from .layout.placement import replicate as replicate
from .layout.strategies import data_parallel as data_parallel
from .layout.strategies import fsdp as fsdp
from .layout.strategies import zero1 as zero1
from .layout.strategies import zero2 as zero2
from .layout.strategies import tensor_parallel as tensor_parallel
from .layout.strategies import by_module as by_module

# -> program
from .program.program import Program as Program
from .program.make import program as program
from .core.constrain import constrain as constrain
from .core.constrain import name as name
from .core.constrain import whole_batch as whole_batch
from .models.attention.dot_product import attention as attention
from .models.layers import layers as layers
from .models.experts.mixture import experts as experts

# -> training
from .train.step import TrainState as TrainState
from .train.step import init_state as init_state
from .train.step import train_step as train_step
from .train.data import TrainData as TrainData
from .train.loop import fit as fit
from .train.evaluate import evaluate as evaluate
from .train.checkpoint.checkpoints import Checkpoints as Checkpoints

# -> reports
from .report.show import show as show
from .report.explore import explore as explore
from .report.explain.explain import explain as explain
from .report.explain.explain import estimate as estimate
from .report.profile.profile import profile as profile
from .analysis.verify.verify import verify as verify

# ready workloads
from .recipes.recipe import Recipe as Recipe
from .recipes.run import run as run
from .recipes.choose import choose as choose
from .search.fix_activations import fix as fix

# what goes wrong
from .core.error_types import OutlayError as OutlayError

# the rest, each folder of the line with what belongs to it
from . import jobs as jobs
from . import devices as devices
from . import graph as graph
from . import schedules as schedules
from . import layout as layout
from . import arrays as arrays
from . import collectives as collectives
from . import datasets as datasets
from . import models as models
from . import train as train
from . import analysis as analysis
from . import report as report
from . import search as search
from . import recipes as recipes
from . import kit as kit
from . import errors as errors

# an application beside this package; `pip install 'outlay[brain]'`
import outlay.brain as brain  # noqa: F401
