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
    token_file: Path | None = None,
) -> int:
    """Lend this machine to runs of strategy batch, until Ctrl-C or SIGTERM.

    Machines are joined by Ray (pip install 'cotswold[cluster]'), whose ports belong
    on a network that is trusted. The first machine is the head; the others, any of
    them at any time, also while a run is trained, name its address. All need the same
    secret: in the variable COTSWOLD_TOKEN, or in a file. Exit code 0: ended as asked;
    1: Ray ended by itself; 2: a mistake of the caller's.

    Examples:

      openssl rand -hex 32 > token; chmod 600 token
      cotswold worker --head --token-file token
      cotswold worker --address 10.0.0.1:6379 --token-file token
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
    token_file
        A file that this user alone can read, with the secret; COTSWOLD_TOKEN by default.
    """
    from cotswold.api.lending import lend
    from cotswold.api.progress import say

    return lend(address, head=head, port=port, cores=cores, token_file=token_file, say=say)
