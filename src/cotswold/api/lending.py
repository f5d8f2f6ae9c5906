"""This machine lent to the runs of a cluster.

Knows: where the secret is, signals, how long it lasts. Does not know: how machines are joined, what runs.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.api.given import check_whole
from cotswold.errors import UserError

if TYPE_CHECKING:
    from cotswold.host import Token


def lend(
    address: str | None,
    *,
    head: bool,
    port: int | None,
    cores: int | None,
    token_file: Path | None,
    say: Callable[[str], None],
) -> int:
    """Join the machines at an address, or be their head, until SIGINT or SIGTERM; the exit code.

    Raises UserError where the words do not fit together, there is no secret, or nobody answers at the
    address; MissingExtraError without Ray.
    """
    from cotswold.cluster.ray_machine import join_head, start_head
    from cotswold.cluster.ray_settings import DEFAULT_PORT, require_ray
    from cotswold.host import address_for_peers

    if head == (address is not None):
        raise UserError("give either --head, for the first machine, or --address HOST:PORT of that one")
    if port is not None and address is not None:
        raise UserError("the port is the head's; write it into --address HOST:PORT")
    if cores is not None:
        check_whole("cores", cores)
        if cores < 1:
            raise UserError(f"cores={cores} lends nothing; give 1 or more")
    require_ray()
    secret = _secret(token_file)
    wake, woken = socket.socketpair()
    before = {number: signal.signal(number, lambda *_: wake.send(b".")) for number in _SIGNALS}
    try:
        if address is None:
            port = port or DEFAULT_PORT
            child = start_head(secret, port=port, cores=cores)
            own = address_for_peers(os.environ) or socket.gethostname()
            say(f"the head of a cluster; others join with: cotswold worker --address {own}:{port}")
        else:
            child = join_head(address, secret, cores=cores)
            say(f"lent to the cluster at {address}; Ctrl-C takes it back")
        with selectors.DefaultSelector() as selector:
            selector.register(child, selectors.EVENT_READ, "child")
            selector.register(woken, selectors.EVENT_READ, "signal")
            asked = {key.data for key, _ in selector.select()}
        if "signal" not in asked:
            say(f"Ray {child.why()}; look at what it printed above")
            return 1
        child.send(signal.SIGTERM)
        with selectors.DefaultSelector() as selector:
            selector.register(child, selectors.EVENT_READ)
            selector.select(_END_SECONDS)
        child.end()
        return 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        wake.close()
        woken.close()


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_END_SECONDS = 20.0


def _secret(file: Path | None) -> Token:
    from cotswold.host import token_in, token_of

    if file is not None:
        return token_in(file)
    found = token_of(os.environ)
    if found is None:
        raise UserError(
            "all machines of a cluster need the same secret; set COTSWOLD_TOKEN, such as to what openssl "
            "rand -hex 32 prints, or give --token-file"
        )
    return found
