from .passes import Shard as Shard
from .passes import run as run
from .write import CHAINS as CHAINS
from .write import Kind as Kind

__all__ = ["CHAINS", "Kind", "Shard", "run"]
