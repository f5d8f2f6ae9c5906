from .passes import Queues as Queues
from .passes import ShardKind as ShardKind
from .passes import run as run
from .products import BlockKind as BlockKind
from .products import Factors as Factors
from .products import run_products as run_products
from .write import CHAINS as CHAINS
from .write import Kind as Kind

__all__ = ["CHAINS", "BlockKind", "Factors", "Kind", "Queues", "ShardKind", "run", "run_products"]
