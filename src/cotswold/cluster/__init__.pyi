from .cluster import Cluster as Cluster
from .cluster import ClusterStatus as ClusterStatus
from .cluster import open_cluster as open_cluster
from .listening import TroubleError as TroubleError
from .settings import ClusterSettings as ClusterSettings
from .settings import Travel as Travel
from .work import PortionSum as PortionSum
from .work import Slot as Slot
from .work import Work as Work

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
