"""Public names for training on a cluster with a custom loop.

Knows: where they are defined. Does not know: anything else.
"""

from __future__ import annotations

from cotswold.batch.runtime.cluster import BatchCluster
from cotswold.batch.runtime.entry import open_cluster
from cotswold.batch.runtime.status import ClusterStatus
from cotswold.processes.cluster_settings import ClusterSettings, PointTransfer
from cotswold.processes.coordinator_loop import ClusterFailedError
from cotswold.shards.runtime.work import PortionSum, TensorSlot, Work

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
