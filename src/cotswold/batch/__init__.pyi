from .interface import BatchCluster as BatchCluster
from .interface import ClusterFailedError as ClusterFailedError
from .interface import ClusterSettings as ClusterSettings
from .interface import ClusterStatus as ClusterStatus
from .interface import PointTransfer as PointTransfer
from .interface import PortionSum as PortionSum
from .interface import TensorSlot as TensorSlot
from .interface import Work as Work
from .interface import open_cluster as open_cluster

__all__ = [
    "BatchCluster",
    "ClusterFailedError",
    "ClusterSettings",
    "ClusterStatus",
    "PointTransfer",
    "PortionSum",
    "TensorSlot",
    "Work",
    "open_cluster",
]
