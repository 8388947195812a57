# where every array lives
from .show import Show as Show
from .explore import Exploration as Exploration
from .explore import Alternative as Alternative
from .show_facts import Facts as Facts
from .show_facts import Totals as Totals
from .show_facts import Count as Count
from .show_facts import DeviceFacts as DeviceFacts
from .show_facts import ModuleFacts as ModuleFacts
from .leaf import LeafFacts as LeafFacts
from .array_blocks import Blocks as Blocks
from .show_facts import Heat as Heat
from .show_facts import HeatRow as HeatRow

# what a program moves, holds and computes
from .explain.explanation import Explanation as Explanation
from .explain.explanation import CompilerOptions as CompilerOptions
from .explain.throughput import Throughput as Throughput
from .explain.explain_front import Front as Front
from .explain.explain_front import FrontCandidate as FrontCandidate

# what it takes
from .profile.profiled import Profile as Profile
from .profile.profiled import Timed as Timed
from .profile.profiled import Compared as Compared
from .profile.profiled import TraceEvent as TraceEvent
