"""`cotswold serve data`.

Knows: the arguments of the command, its line of progress. Does not know: how anything is served.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from cotswold.api.servers.data_server_status import ServedDataStatus

_POLL_SECONDS = 0.5
_STOPPING = "stopping: telling trainers that the pool ends; press again to stop at once"

_LEAVE_MESSAGE = "leaving: trainers switch to other data servers; press again to stop at once"


def serve_data(
    source: str,
    *,
    servers: int = 2,
    listen: str | None = None,
    cache: str | None = None,
    token_file: Path | None = None,
    join: str | None = None,
    threads: int = 1,
    ports: str | None = None,
    encrypt: bool = True,
    metrics: str | None = None,
    set: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    stores: Path = Path("stores"),
) -> int:
    """Serve batches of prepared samples to training runs and loops, until Ctrl-C or SIGTERM.

    Separate processes read, unpack and augment samples for trainers: docs/data-servers.md.
    A run uses them by [data] servers = "HOST:PORT" in its recipe, your own loop by
    cotswold.data.connect(address, token). Results have the same bits as without servers,
    even if processes are killed. Exit code 0: ended by a signal; 1: all data servers
    died; 2: a user error.

    Examples:

      openssl rand -hex 32 > token; chmod 600 token
      cotswold serve data my.toml --token-file token --listen 127.0.0.1:7000
      cotswold serve data stores/mnist --token-file token --servers 4 --cache 4GB
      cotswold serve data my.toml --token-file token --listen 10.0.0.1:7000
      cotswold serve data my.toml --token-file token --join 10.0.0.1:7000
      cotswold serve data my.toml --token-file token --metrics 9100

    Parameters
    ----------
    source
        A recipe file, the name of a shipped recipe, or the folder of a store. A recipe's samples are prepared
        first if necessary, and its [[data.augment]] applies to training samples.
    servers
        Number of server processes on this machine.
    listen
        The address of this machine for trainers, and the port, 0 for any free one. Default: 127.0.0.1:0.
    cache
        Memory for cached shards per server, such as 512MB. Default: the recipe's data.cache, or 1GB.
    token_file
        A file with the secret, readable by this user only; created if missing. Default: COTSWOLD_TOKEN.
    join
        The address of a running pool: this machine adds servers to it until Ctrl-C, SIGTERM or
        the pool's end. The same samples must be prepared here.
    threads
        Number of threads per server that make batches.
    ports
        The ports of the servers, FIRST-LAST, at least one each. Default: any.
    encrypt
        Encrypt samples between hosts; trainers need the same setting.
    metrics
        Serve Prometheus metrics on this port of 127.0.0.1, or on another ADDRESS:PORT.
    set
        Override a field of the recipe, as in data.source=photographs.zip; may be given again.
    stores
        Folder for prepared samples.
    """
    import os

    from cotswold.api.arguments import parse_ports
    from cotswold.api.servers.data_server import serve_data
    from cotswold.api.signals import graceful_exit
    from cotswold.dataservice.runtime.server_supervision import event_text
    from cotswold.errors import UserError
    from cotswold.host import token_of
    from cotswold.run import Stop
    from cotswold.ui.terminal import show_stages, write_message, write_note

    if token_file is None and token_of(os.environ) is None:
        raise UserError("trainers need a secret: give --token-file FILE, or set COTSWOLD_TOKEN")
    between = parse_ports(ports)
    stop = Stop()
    with (
        graceful_exit(stop, _STOPPING if join is None else _LEAVE_MESSAGE, "stopped at once"),
        serve_data(
            source,
            overrides=set or [],
            servers=servers,
            threads=threads,
            listen=listen,
            cache=cache,
            token=token_file,
            join=join,
            ports=between,
            encrypt=encrypt,
            metrics=metrics,
            stores=stores,
            progress=True,
            on_event=lambda kind, more: write_message(event_text(kind, more)),
        ) as served,
        show_stages() as show,
    ):
        token = token_file or "COTSWOLD_TOKEN"
        write_message(
            f"serving {served.store.path} at {served.address}; the token: {token}"
            if join is None
            else f"serving {served.store.path} for the pool at {served.address}; Ctrl-C withdraws the servers"
        )
        if served.metrics_url:
            write_note(f"metrics for Prometheus: {served.metrics_url}")
        while stop.signal is None and not served.wait(_POLL_SECONDS):
            show(_line(served.status, join is not None), 0)
        if stop.signal is None:
            write_message(f"the pool at {served.address} has ended")
    write_note(f"ended: {_line(served.status, join is not None)}")
    return 0


def _line(status: ServedDataStatus, is_attached: bool) -> str:
    """Return the progress as one line; servers attached to another pool do not know its trainers."""
    from cotswold.phrases import counted
    from cotswold.ui.format import bytes_in_words

    rate = status.hit_rate
    refused = "".join(f", {count} {reason}" for reason, count in sorted(status.refused.items()))
    cached = sum(each.cached_bytes for each in status.servers)
    return (
        ("" if is_attached else f"{counted(len(status.trainers), 'trainer')}, ")
        + f"{counted(len(status.servers), 'server')}, "
        f"{counted(status.samples, 'sample')} ({status.samples_per_second:.0f}/s), "
        f"{counted(status.waiting, 'request')} waiting, "
        + (f"cache {rate:.0%} hits, {bytes_in_words(cached)}" if rate is not None else "cache empty")
        + (f"; refused{refused[1:]}" if refused else "")
    )
