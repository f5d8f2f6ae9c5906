from .maps.array import DistributedArray as DistributedArray
from .maps.exchange import Exchange as Exchange
from .maps.exchange import ExchangeHandle as ExchangeHandle
from .maps.map import DistributedMap as DistributedMap
from .maps.map import local_map as local_map
from .modules.layer import SpatialLayer as SpatialLayer
from .modules.parameters import own_box as own_box
from .modules.partition import partition as partition
from .ranks.mesh import Mesh as Mesh
from .stacks.stack import TrainedStack as TrainedStack

__all__ = [
    "DistributedArray",
    "DistributedMap",
    "Exchange",
    "ExchangeHandle",
    "Mesh",
    "SpatialLayer",
    "TrainedStack",
    "local_map",
    "own_box",
    "partition",
]
