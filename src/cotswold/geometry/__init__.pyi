from .block_local import BlockLocal as BlockLocal
from .block_local import MapShape as MapShape
from .box import Box as Box
from .exchange import ExchangePlan as ExchangePlan
from .exchange import Transfer as Transfer
from .partition import Grid as Grid
from .partition import Partition as Partition
from .region import Region as Region
from .stack import Smoothing as Smoothing
from .stack import StackGeometry as StackGeometry
from .stack_partition import StackPartition as StackPartition
from .window import Window as Window

__all__ = [
    "BlockLocal",
    "Box",
    "ExchangePlan",
    "Grid",
    "MapShape",
    "Partition",
    "Region",
    "Smoothing",
    "StackGeometry",
    "StackPartition",
    "Transfer",
    "Window",
]
