# what a compiled program moves, holds and computes
from .attribution.program_facts import CollectiveFacts as CollectiveFacts
from .attribution.program_facts import MemoryFacts as MemoryFacts
from .attribution.live_memory import LiveMemory as LiveMemory
from .attribution.live_memory import HeldMemory as HeldMemory
from .attribution.program_facts import ValueFacts as ValueFacts
from .attribution.program_facts import WorkFacts as WorkFacts
from .attribution.program_facts import HostCopyFacts as HostCopyFacts
from .attribution.program_facts import RecomputedFacts as RecomputedFacts
from .attribution.program_facts import Segment as Segment
from .attribution.leaves import LayoutFacts as LayoutFacts
from .attribution.leaves import PlacedAlike as PlacedAlike
from .attribution.collective_facts import Total as Total
from .attribution.timeline import OperationFacts as OperationFacts
from .findings.finding import Finding as Finding

# how long a step takes
from .cost.estimate import Estimate as Estimate
from .cost.estimate import Transfer as Transfer
from .cost.estimate import Range as Range
from .cost.evidence import PublishedRun as PublishedRun
from .cost.fit_speeds import FittedSpeeds as FittedSpeeds
from .cost.schedule import Schedule as Schedule
from .cost.schedule import Event as Event
from .cost.schedule import Exchange as Exchange
from .cost.links import Location as Location

# what the parts of a graph cost
from .parts.measure_parts import measure_parts as measure_parts
from .parts.measure_parts import PartTimes as PartTimes
from .parts.part_facts import PlacedExplanation as PlacedExplanation
from .parts.part_facts import PartFacts as PartFacts
from .parts.part_facts import SentFacts as SentFacts
from .parts.part_facts import CachedFacts as CachedFacts

# whether it computes what one device computes
from .verify.verification import Verification as Verification
from .verify.verification import LeafCheck as LeafCheck
from .verify.static.static_verification import StaticVerification as StaticVerification
from .verify.static.static_verification import StaticFault as StaticFault
from .verify.sampled.sampled_verification import SampledVerification as SampledVerification
from .verify.sampled.sampled_verification import Shrunk as Shrunk
from .verify.as_compiled.structure import StructureComparison as StructureComparison

# the compiler's text as values
from .hlo.hlo_module import HloModule as HloModule
from .hlo.hlo_module import Computation as Computation
from .hlo.hlo_module import Instruction as Instruction
from .hlo.hlo_module import SourceLine as SourceLine
from .hlo.hlo_module import Shape as Shape
