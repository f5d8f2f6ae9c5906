from cotswold.batch.runtime.cluster import Cluster as Cluster
from cotswold.batch.runtime.cluster import ClusterStatus as ClusterStatus
from cotswold.batch.runtime.cluster import open_cluster as open_cluster
from cotswold.shards.runtime.work import PortionSum as PortionSum
from cotswold.shards.runtime.work import Slot as Slot
from cotswold.shards.runtime.work import Work as Work

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
