from .current_job import Joined as Joined
from .heartbeat import beat as beat
