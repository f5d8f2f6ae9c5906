"""Which runs may have servers that keep copies.

Knows: the sections that ask for them. Does not know: what else a recipe says.
"""

from __future__ import annotations

from cotswold.recipe.schema.cluster import Cluster
from cotswold.recipe.schema.training import DownpourTraining


def check_copies(cluster: Cluster, training: DownpourTraining, *, has_grid: bool) -> None:
    """Raise ValueError where servers are to keep copies and cannot; ``has_grid``: that of a replica."""
    servers, copies = cluster.servers, cluster.server_copies
    if cluster.buckets is not None and not cluster.keeps_copies:
        raise ValueError(
            "cluster.buckets are parts that have copies; set cluster.server_copies, or take it out"
        )
    _check_kept(cluster)
    if not cluster.keeps_copies:
        return
    asked = "cluster.server_copies" if copies > 1 else "cluster.flush_seconds"
    if cluster.parameter_servers is not None:
        if copies > 1 or servers > 1 or cluster.flush_seconds is not None:
            raise ValueError(
                "a cluster that stands has its own servers, copies and disks (`cotswold cluster start`); "
                "take cluster.servers, cluster.server_copies and cluster.flush_seconds out, or "
                "cluster.parameter_servers"
            )
        if cluster.spread_servers:
            raise ValueError(
                "a cluster that stands has its own servers, on hosts of its own (`cotswold cluster start`); "
                "take cluster.spread_servers out, or cluster.parameter_servers"
            )
        asked = "cluster.parameter_servers"
    if servers < copies:
        raise ValueError(
            f"cluster.server_copies is {copies}, each on a server of its own, and there are {servers} "
            "servers; give more cluster.servers, or fewer copies"
        )
    if cluster.processes > 1 or has_grid:
        raise ValueError(
            "the processes of a replica push to servers that keep no copies, on other servers or on disk; "
            f"take {asked} out, or cluster.processes and mesh.grid"
        )
    if training.record_traffic:
        raise ValueError(
            f"training.record_traffic is for servers that keep no copies; take one of it and {asked} out"
        )


def _check_kept(cluster: Cluster) -> None:
    """How copies are kept goes with how many there are."""
    copies, least = cluster.server_copies, cluster.server_copies_min
    if least > copies:
        raise ValueError(
            f"cluster.server_copies_min is {least}, and cluster.server_copies {copies}: pushes would wait "
            "for ever; give more copies, or a smaller least"
        )
    if cluster.replication != "star" and copies == 1:
        raise ValueError(
            f'cluster.replication is "{cluster.replication}", and one server has each part; '
            "set cluster.server_copies, or take it out"
        )
