from .block_store import CONTENTS as CONTENTS
from .block_store import BlockStore as BlockStore
from .corruption import Damage as Damage
from .corruption import DamagedError as DamagedError
from .corruption import RebuiltIndex as RebuiltIndex
from .flusher import Flusher as Flusher
from .flusher import WriteCompleted as WriteCompleted
from .flusher import WriteFailed as WriteFailed
from .records import BlockKey as BlockKey
from .records import Bucket as Bucket
from .records import BucketSnapshot as BucketSnapshot
from .records import Head as Head
from .write_backlog import Backlog as Backlog
from .write_backlog import Policy as Policy

__all__ = [
    "CONTENTS",
    "Backlog",
    "BlockKey",
    "BlockStore",
    "Bucket",
    "BucketSnapshot",
    "Damage",
    "DamagedError",
    "Flusher",
    "Head",
    "Policy",
    "RebuiltIndex",
    "WriteCompleted",
    "WriteFailed",
]
