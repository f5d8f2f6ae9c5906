from .block_local import BlockLocal as BlockLocal
from .block_local import MapShape as MapShape
from .box import Box as Box
from .exchange import ExchangePlan as ExchangePlan
from .exchange import Transfer as Transfer
from .partition import Grid as Grid
from .partition import Partition as Partition
from .reduction import ReductionPlan as ReductionPlan
from .reduction import Step as Step
from .reduction_time import Host as Host
from .reduction_time import Network as Network
from .reduction_time import NetworkCard as NetworkCard
from .reduction_time import best_all_reduce as best_all_reduce
from .reduction_time import best_plan as best_plan
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
    "Host",
    "MapShape",
    "Network",
    "NetworkCard",
    "Partition",
    "ReductionPlan",
    "Region",
    "Smoothing",
    "StackGeometry",
    "StackPartition",
    "Step",
    "Transfer",
    "Window",
    "best_all_reduce",
    "best_plan",
]
