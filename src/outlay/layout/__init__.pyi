# placements besides `outlay.replicate`
from .placement import on as on
from .placement import follow as follow
from .placement import keep as keep
from .placement import recompute as recompute
from .placement import on_host as on_host
from .pipelines import pipeline as pipeline
from .contexts import context as context
from .fp8 import fp8 as fp8

# policies
from .placement import LeafView as LeafView
from .placement import Choice as Choice
from .placement import CannotPlace as CannotPlace

# layouts besides the strategies at the top
from .strategies import by_rows as by_rows
from .hybrid import hsdp as hsdp
from .expert_rules import expert_parallel as expert_parallel
from .from_annotations import from_annotations as from_annotations
from .read_layout import read_layout as read_layout
from .write_layout import write_layout as write_layout

# the plan
from .plan import Plan as Plan
from .leaf_plan import LeafPlan as LeafPlan
from .diff import PlanDiff as PlanDiff
from .diff import LeafDiff as LeafDiff

# what placements are
from .placement import Replicate as Replicate
from .placement import On as On
from .placement import Follow as Follow
from .placement import Storage as Storage
from .pipelines import Pipeline as Pipeline
from .contexts import Context as Context
from .fp8 import Fp8 as Fp8
