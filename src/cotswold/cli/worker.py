"""`cotswold worker`.

Knows: the arguments of the command, exit codes. Does not know: how machines are connected.
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
    """Add this machine to runs of strategies batch and downpour, until Ctrl-C or SIGTERM.

    On SIGTERM, the notice of a spot machine, and on Ctrl-C, workers here finish their
    portion and send their sums, and replicas push their pending gradients, for at most
    25 s; then the machine leaves, and the runs continue without it. A second signal ends
    all processes at once.

    Ray connects the machines (pip install '.[cluster]' in a checkout of Cotswold); its
    ports belong on a trusted network. The first machine is the head; the others give its
    address, and may join at any time, also during a run. All need the same secret, in the
    variable COTSWOLD_TOKEN or in a file; runs on a parameter-server cluster with another
    secret need that one in COTSWOLD_CLUSTER_TOKEN. Exit code 0: ended by a signal; 1: Ray
    ended by itself; 2: a user error.

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
        Start the head here.
    port
        The port of the head. Default: 6379.
    cores
        Number of cores to provide. Default: all cores granted to this process.
    ports
        The ports on which Ray listens here, FIRST-LAST, at least 32, in addition to the head's. Default: any.
        The ports of a run's own processes are its cluster.ports.
    token_file
        An existing file with the secret, readable by this user only (chmod 600). Default: COTSWOLD_TOKEN.
    """
    from cotswold.api.servers.worker_host import run_worker_host
    from cotswold.ui.terminal import write_message

    return run_worker_host(
        address, head=head, port=port, cores=cores, ports=ports, token_file=token_file, show=write_message
    )
