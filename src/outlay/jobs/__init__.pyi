from .joined import Joined as Joined
from .heartbeat import beat as beat
