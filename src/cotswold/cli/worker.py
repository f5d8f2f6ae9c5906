"""`cotswold worker`.

Knows: the words of the command, exit codes. Does not know: how machines are joined.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def worker(
    *,
    address: str | None = None,
    head: Annotated[bool, Parameter(negative=())] = False,
    port: int | None = None,
    cores: int | None = None,
    ports: str | None = None,
    token_file: Path | None = None,
) -> int:
    """Lend this machine to runs of strategies batch and downpour, until Ctrl-C or SIGTERM.

    SIGTERM is the notice that a spot machine gives, and Ctrl-C the same: workers here
    finish their portion and hand over their sums, replicas push what they have in
    hand, for at most 25 s; then the machine leaves, and the runs go on without it. A
    second one ends all at once.

    Machines are joined by Ray (pip install '.[cluster]' in a checkout of Cotswold),
    whose ports belong on a network that is trusted. The first machine is the head; the others, any of
    them at any time, also while a run is trained, name its address. All need the same
    secret: in the variable COTSWOLD_TOKEN, or in a file; and for runs on a cluster of
    parameter servers with another secret that one, in COTSWOLD_CLUSTER_TOKEN. Exit code 0: ended as asked;
    1: Ray ended by itself; 2: a mistake of the caller's.

    Examples:

      openssl rand -hex 32 > token; chmod 600 token
      cotswold worker --head --token-file token
      cotswold worker --address 10.0.0.1:6379 --token-file token
      cotswold worker --address 10.0.0.1:6379 --token-file token --ports 20000-20099
      COTSWOLD_TOKEN=$(cat token) cotswold train my.toml --address 10.0.0.1:6379 --workers 8

    Parameters
    ----------
    address
        The head's host and port.
    head
        Be the head.
    port
        The port at which the head is reached; 6379 by default.
    cores
        How many cores to lend; those that this process is granted, by default.
    ports
        The ports at which Ray listens here, FIRST-LAST, at least 32 of them, beside the head's; any
        by default. Those of a run's own processes are its cluster.ports.
    token_file
        A file that is there and that this user alone can read (chmod 600), with the secret; COTSWOLD_TOKEN
        by default.
    """
    from cotswold.api.servers.worker_host import lend
    from cotswold.ui.progress import say

    return lend(address, head=head, port=port, cores=cores, ports=ports, token_file=token_file, say=say)
