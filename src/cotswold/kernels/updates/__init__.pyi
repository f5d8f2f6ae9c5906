from .passes import Queues as Queues
from .passes import Shard as Shard
from .passes import run as run
from .products import Block as Block
from .products import Factors as Factors
from .products import run_products as run_products
from .write import CHAINS as CHAINS
from .write import Kind as Kind

__all__ = ["CHAINS", "Block", "Factors", "Kind", "Queues", "Shard", "run", "run_products"]
