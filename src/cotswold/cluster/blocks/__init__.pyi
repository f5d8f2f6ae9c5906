from .backlog import Backlog as Backlog
from .backlog import Policy as Policy
from .damage import Damage as Damage
from .damage import DamagedError as DamagedError
from .damage import Renewed as Renewed
from .flushing import Flusher as Flusher
from .flushing import WriteFailed as WriteFailed
from .flushing import Written as Written
from .records import BlockKey as BlockKey
from .records import Bucket as Bucket
from .records import Head as Head
from .records import Snapshot as Snapshot
from .store import CONTENTS as CONTENTS
from .store import BlockStore as BlockStore

__all__ = [
    "CONTENTS",
    "Backlog",
    "BlockKey",
    "BlockStore",
    "Bucket",
    "Damage",
    "DamagedError",
    "Flusher",
    "Head",
    "Policy",
    "Renewed",
    "Snapshot",
    "WriteFailed",
    "Written",
]
