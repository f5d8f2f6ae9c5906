"""This machine as a worker host for the runs of a cluster.

Knows: the secret, signals, the duration. Does not know: how machines join, what runs on them.
"""

from __future__ import annotations

import os
import selectors
import shlex
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from cotswold.api.arguments import check_integer, parse_ports
from cotswold.errors import UserError

if TYPE_CHECKING:
    from cotswold.host import Token
    from cotswold.host.child_process import Child
    from cotswold.processes.shutdown_notice import ShutdownNotice


def run_worker_host(
    address: str | None,
    *,
    head: bool,
    port: int | None,
    cores: int | None,
    ports: str | None,
    token_file: Path | None,
    show: Callable[[str], None],
) -> int:
    """Join the machines at an address, or become their head, until SIGINT or SIGTERM; return the exit code.

    Raises UserError if the arguments contradict each other, the secret is missing, or the head does not
    answer; MissingExtraError without Ray.
    """
    from cotswold.host import address_for_peers
    from cotswold.processes.ray.node import join_head, start_head
    from cotswold.processes.ray.settings import DEFAULT_PORT, require_ray
    from cotswold.processes.shutdown_notice import ShutdownNotice

    if head == (address is not None):
        raise UserError(
            "give either --head, on the first machine, or --address HOST:PORT of the first machine"
        )
    if port is not None and address is not None:
        raise UserError("--port applies to the head; write its port into --address HOST:PORT")
    if cores is not None:
        check_integer("cores", cores)
        if cores < 1:
            raise UserError(f"cores must be at least 1, got {cores}")
    between = parse_ports(ports)
    require_ray()
    secret = _secret(token_file)

    def start(output: int, environ: Mapping[str, str]) -> Child:
        if address is None:
            return start_head(
                secret, port=port or DEFAULT_PORT, cores=cores, ports=between, environ=environ, output=output
            )
        return join_head(address, secret, cores=cores, ports=between, environ=environ, output=output)

    if address is None:
        own = address_for_peers(os.environ) or socket.gethostname()
        ready = (
            f"the head of a cluster; others join with: cotswold worker --address {own}:{port or DEFAULT_PORT}"
        )
    else:
        ready = f"joined the cluster at {address}; Ctrl-C leaves it"
    with closing(ShutdownNotice()) as notice, _signals() as woken, tempfile.TemporaryFile() as printed:
        for attempt in range(_ATTEMPTS):
            child = start(printed.fileno(), {**os.environ, **notice.environ()})
            try:
                if _wait(child, woken, lambda: _UP_MESSAGE in _text(printed), lambda: show(ready)):
                    _leave_cluster(child, woken, notice, show)
                    return 0
                why = child.why()
            finally:
                child.end()
            if _EARLY_MESSAGE not in _text(printed) or attempt == _ATTEMPTS - 1:
                break
            show("the head is not ready; retrying")
            printed.truncate(0)
        for line in _text(printed).splitlines()[-_LINES:]:
            show(f"Ray: {line}")
        show(f"Ray {why}")
        return 1


def _wait(
    child: Child, woken: socket.socket, is_ready: Callable[[], bool], tell: Callable[[], object]
) -> bool:
    """Wait until this process is asked to end (True) or the child has ended; call ``tell`` when it is up."""
    is_up = False
    with selectors.DefaultSelector() as selector:
        selector.register(child, selectors.EVENT_READ, "child")
        selector.register(woken, selectors.EVENT_READ, "signal")
        while True:
            asked = {key.data for key, _ in selector.select(None if is_up else _POLL_SECONDS)}
            if asked:
                return "signal" in asked
            if is_ready():
                is_up = True
                tell()


def _leave_cluster(
    child: Child, woken: socket.socket, notice: ShutdownNotice, show: Callable[[str], None]
) -> None:
    """Hand over running work, then end Ray; a second signal ends it at once."""
    woken.recv(1)
    show("leaving: running processes hand over their work")
    notice.send(_NOTICE_SECONDS, woken)
    child.send(signal.SIGTERM)
    with selectors.DefaultSelector() as selector:
        selector.register(child, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        selector.select(_END_SECONDS)


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """Yield a socket that receives a byte for each signal asking this process to end."""
    wake, woken = socket.socketpair()
    before = {number: signal.signal(number, lambda *_: wake.send(b".")) for number in _SIGNALS}
    try:
        yield woken
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        wake.close()
        woken.close()


def _text(printed: IO[bytes]) -> str:
    """Return Ray's output."""
    return os.pread(printed.fileno(), _PRINTED_MOST, 0).decode(errors="replace")


_UP_MESSAGE, _EARLY_MESSAGE = "Ray runtime started", "No node info found for head node"
"""Ray's output when it is up, and when the head answers before it is up."""
_ATTEMPTS = 6
_POLL_SECONDS = 0.3
_LINES = 5
_PRINTED_MOST = 1 << 16
_NOTICE_SECONDS = 25.0
"""Seconds for the handover; a spot machine has at least 30 s."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_END_SECONDS = 20.0


def _secret(file: Path | None) -> Token:
    from cotswold.host import read_token, token_of

    if file is not None:
        if not os.path.lexists(file):  # a new secret would differ from the other machines'
            path = shlex.quote(str(file))
            raise UserError(
                f"{file} does not exist; make the secret once, openssl rand -hex 32 > {path}; chmod 600 "
                f"{path}, and copy it to every machine of the cluster"
            )
        return read_token(file)
    found = token_of(os.environ)
    if found is None:
        raise UserError(
            "all machines of a cluster need the same secret; set COTSWOLD_TOKEN, such as to what openssl "
            "rand -hex 32 prints, or give --token-file"
        )
    return found
