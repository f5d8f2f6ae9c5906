from .forked_group import LeaderGroup as LeaderGroup
from .forked_group import follow as follow
from .forked_group import lead as lead
from .local import run_local as run_local
from .membership import Membership as Membership
from .membership import join as join
from .world import World as World
from .world import settings_of as settings_of
from .world import threads_of as threads_of
from .world import world_of as world_of

__all__ = [
    "LeaderGroup",
    "Membership",
    "World",
    "follow",
    "join",
    "lead",
    "run_local",
    "settings_of",
    "threads_of",
    "world_of",
]
