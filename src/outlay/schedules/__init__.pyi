from .actions import Action as Action
from .actions import Kind as Kind
from .stage_schedule import StageSchedule as StageSchedule
from .timing import in_order as in_order
from .known_schedules import gpipe as gpipe
from .known_schedules import one_f_one_b as one_f_one_b
from .known_schedules import interleaved as interleaved
from .known_schedules import zero_bubble as zero_bubble
