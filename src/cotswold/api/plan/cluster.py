"""Plan of a run on an existing cluster of parameter servers.

Knows: requests to the controllers, the message if none answers. Does not know: the run's memory
(`async_sgd`).
"""

from __future__ import annotations

from cotswold.api.plan import base as plan
from cotswold.errors import CotswoldError

_LIVE_STATE = "living"


def cluster_row(controllers: str, parts: int, copy_bytes: int) -> plan.Row:
    """Return the state of the cluster and the needs of a run with ``parts`` parts of its parameters.

    ``copy_bytes`` is the memory of one copy of the parameters on all servers together.
    """
    from cotswold.api.servers.cluster_admin import operator

    needed: plan.Row = {"parts_of_parameters": parts, "copy_memory_bytes": copy_bytes}
    try:
        with operator(controllers) as asked:
            looked = asked.status()
    except CotswoldError as error:
        return {**needed, "parameter_servers": f"the cluster does not answer: {error}"}
    living = [each for each in looked.servers if each.state == _LIVE_STATE]
    copies = min(looked.replication_factor, len(living))
    runs = (
        "no other run" if not looked.runs else f"{len(looked.runs)} other run{'s' * (len(looked.runs) > 1)}"
    )
    if not living:
        said = f"{looked.controller} answers, but the cluster has no servers: cotswold cluster start, or add"
    else:
        hosts, short = len({each.host for each in living}), looked.replication_factor - copies
        said = (
            f"{len(living)} server{'s' * (len(living) > 1)} on {hosts} host{'s' * (hosts > 1)}, "
            f"{copies} {'copy' if copies == 1 else 'copies'} of each part, {runs}"
        )
        said += (
            f"; {looked.replication_factor} copies are configured, each on its own server" if short else ""
        )
        if copies < looked.least:
            said += f", and pushes wait with fewer than {looked.least}"
    return {
        **needed,
        "parameter_servers": said,
        "cluster_memory_bytes": copies * copy_bytes,
        **({"cluster_server_memory_bytes": -(-copies * copy_bytes // len(living))} if living else {}),
    }
