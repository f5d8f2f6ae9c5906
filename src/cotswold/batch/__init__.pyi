from .interface import BatchCluster as BatchCluster
from .interface import ClusterFailedError as ClusterFailedError
from .interface import ClusterSettings as ClusterSettings
from .interface import ClusterStatus as ClusterStatus
from .interface import PortionSum as PortionSum
from .interface import TensorSlot as TensorSlot
from .interface import Travel as Travel
from .interface import Work as Work
from .interface import open_cluster as open_cluster

__all__ = [
    "BatchCluster",
    "ClusterFailedError",
    "ClusterSettings",
    "ClusterStatus",
    "PortionSum",
    "TensorSlot",
    "Travel",
    "Work",
    "open_cluster",
]
