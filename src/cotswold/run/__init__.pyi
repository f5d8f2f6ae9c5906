from .directory import RUNS as RUNS
from .directory import RunDirectory as RunDirectory
from .environment import describe_environment as describe_environment
from .events import Event as Event
from .events import EventLog as EventLog
from .events import NoLog as NoLog
from .events import read_events as read_events
from .metrics import Metrics as Metrics
from .recorder import Recorder as Recorder
from .stop import Stop as Stop
from .usage import Usage as Usage

__all__ = [
    "RUNS",
    "Event",
    "EventLog",
    "Metrics",
    "NoLog",
    "Recorder",
    "RunDirectory",
    "Stop",
    "Usage",
    "describe_environment",
    "read_events",
]
