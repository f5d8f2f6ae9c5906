from cotswold.batch.runtime.cluster import Cluster as Cluster
from cotswold.batch.runtime.cluster import ClusterStatus as ClusterStatus
from cotswold.batch.runtime.cluster import open_cluster as open_cluster
from cotswold.processes.cluster_settings import ClusterSettings as ClusterSettings
from cotswold.processes.cluster_settings import Travel as Travel
from cotswold.processes.coordinator_loop import TroubleError as TroubleError
from cotswold.shards.runtime.work import PortionSum as PortionSum
from cotswold.shards.runtime.work import Slot as Slot
from cotswold.shards.runtime.work import Work as Work

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
