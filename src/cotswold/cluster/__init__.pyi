from cotswold.shards.runtime.work import PortionSum as PortionSum
from cotswold.shards.runtime.work import Slot as Slot
from cotswold.shards.runtime.work import Work as Work

from .cluster import Cluster as Cluster
from .cluster import ClusterStatus as ClusterStatus
from .cluster import open_cluster as open_cluster
from .listening import TroubleError as TroubleError
from .settings import ClusterSettings as ClusterSettings
from .settings import Travel as Travel

__all__ = [
    "Cluster",
    "ClusterSettings",
    "ClusterStatus",
    "PortionSum",
    "Slot",
    "Travel",
    "TroubleError",
    "Work",
    "open_cluster",
]
