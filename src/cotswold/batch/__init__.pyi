from .interface import Cluster as Cluster
from .interface import ClusterFailedError as ClusterFailedError
from .interface import ClusterSettings as ClusterSettings
from .interface import ClusterStatus as ClusterStatus
from .interface import PointTransfer as PointTransfer
from .interface import PortionSum as PortionSum
from .interface import Slot as Slot
from .interface import Work as Work
from .interface import open_cluster as open_cluster

__all__ = [
    "Cluster",
    "ClusterFailedError",
    "ClusterSettings",
    "ClusterStatus",
    "PointTransfer",
    "PortionSum",
    "Slot",
    "Work",
    "open_cluster",
]
