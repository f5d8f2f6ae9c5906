from .settings import ClusterSettings as ClusterSettings
from .settings import Travel as Travel
from .work import PortionSum as PortionSum
from .work import Work as Work

__all__ = ["ClusterSettings", "PortionSum", "Travel", "Work"]
