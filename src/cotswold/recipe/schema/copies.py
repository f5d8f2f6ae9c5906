"""Check which runs may have servers that keep copies.

Knows: the sections involved. Does not know: the rest of a recipe.
"""

from __future__ import annotations

from cotswold.recipe.schema.async_sgd import DownpourTraining
from cotswold.recipe.schema.cluster import Cluster


def check_copies(cluster: Cluster, training: DownpourTraining, *, has_grid: bool) -> None:
    """Raise ValueError if servers cannot keep the requested copies; ``has_grid``: replicas have a grid."""
    servers, copies = cluster.servers, cluster.replication_factor
    if cluster.max_buckets is not None and not cluster.keeps_copies:
        raise ValueError("cluster.max_buckets needs copies; set cluster.replication_factor, or remove it")
    _check_kept(cluster)
    if not cluster.keeps_copies:
        return
    asked = "cluster.replication_factor" if copies > 1 else "cluster.flush_seconds"
    if cluster.controllers is not None:
        if copies > 1 or servers > 1 or cluster.flush_seconds is not None:
            raise ValueError(
                "a running cluster has its own servers, copies and disks (`cotswold cluster start`); "
                "remove cluster.servers, cluster.replication_factor and cluster.flush_seconds, or "
                "cluster.controllers"
            )
        if cluster.spread_servers:
            raise ValueError(
                "a running cluster has its own servers and hosts (`cotswold cluster start`); "
                "remove cluster.spread_servers, or cluster.controllers"
            )
        asked = "cluster.controllers"
    if servers < copies:
        raise ValueError(
            f"cluster.replication_factor is {copies}, each on a different server, but cluster.servers is "
            f"{servers}; give more servers, or fewer copies"
        )
    if cluster.processes > 1 or has_grid:
        raise ValueError(
            "replicas of several processes or ranks need servers without copies, on other servers or on "
            f"disk; remove {asked}, or cluster.processes and mesh.grid"
        )
    if training.record_traffic:
        raise ValueError(f"training.record_traffic needs servers without copies; remove it or {asked}")


def _check_kept(cluster: Cluster) -> None:
    """Check settings of copies that depend on their number."""
    copies, least = cluster.replication_factor, cluster.replication_factor_min
    if least > copies:
        raise ValueError(
            f"cluster.replication_factor_min is {least}, but cluster.replication_factor is {copies}: pushes "
            "would never be accepted; give more copies, or a smaller minimum"
        )
    if cluster.topology != "star" and copies == 1:
        raise ValueError(
            f'cluster.topology is "{cluster.topology}", but each bucket is on one server; '
            "set cluster.replication_factor, or remove it"
        )
