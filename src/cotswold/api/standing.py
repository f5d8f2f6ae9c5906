"""A host of a cluster of parameter servers that outlives runs: started, and served until it is asked to end.

Knows: where the secret is, words for what happens, the file that has it. Does not know: how servers work.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.api.host_events import EventFile
from cotswold.errors import UserError
from cotswold.server.control.sentences import GATHERED, OF_BUCKETS

if TYPE_CHECKING:
    from cotswold.cluster.station import Drained, StationSettings
    from cotswold.host import Token
    from cotswold.host.keyring import KeyringFile
    from cotswold.run import Stop

EVENTS = "events.jsonl"
DRAIN_SECONDS = 25.0
_LOOK_SECONDS = 0.2
_QUIET = ("serving", *OF_BUCKETS)
"""Events that are written down and not said: of buckets it is said what has become of all with one cause."""


def cluster_tokens(token: Path | None) -> Token | KeyringFile:
    """The secret of a cluster: in a file, which may be changed while it is in use; without one in that which
    COTSWOLD_CLUSTER_TOKEN_FILE names, in COTSWOLD_CLUSTER_TOKEN, or in COTSWOLD_TOKEN. Raises UserError for a
    file that is not there: one that was made would have no cluster's secret."""
    from cotswold.cluster.rotating import tokens_of_cluster
    from cotswold.host.keyring import KeyringFile

    if token is not None:
        return KeyringFile(token)
    found = tokens_of_cluster(os.environ)
    if found is None:
        raise UserError(
            "the cluster needs a secret of its own: give --token-file FILE, or set COTSWOLD_CLUSTER_TOKEN or "
            "COTSWOLD_CLUSTER_TOKEN_FILE"
        )
    return found


def made_tokens(token: Path | None) -> Token | KeyringFile:
    """As `cluster_tokens`, for whoever starts a cluster: the file is made where it is not there."""
    from cotswold.host.keyring import KeyringFile

    return cluster_tokens(None) if token is None else KeyringFile.made(token)


def serve_host(
    settings: StationSettings,
    token: Token | KeyringFile,
    stop: Stop,
    say: Callable[[str], None] = lambda sentence: None,
) -> None:
    """Have this host serve until ``stop``; what happens is said, and written into the host's folder."""
    from cotswold.cluster.station import Station

    settings.folder.mkdir(parents=True, exist_ok=True)
    with EventFile(settings.folder / EVENTS, say) as file:

        def hear(kind: str, name: str, sentence: str) -> None:
            if kind != GATHERED:
                file.write(time=round(time.time(), 3), kind=kind, name=name, sentence=sentence)
            if kind not in _QUIET:
                say(sentence)

        controller = "" if settings.own_controller is None else ", and a controller"
        servers = "1 server" if settings.servers == 1 else f"{settings.servers} servers"
        say(f"starting {servers}{controller} on {settings.at}; what happens is in {settings.folder / EVENTS}")
        with Station(settings, token, hear) as station:
            processes = ", ".join(station.processes)
            say(f"serving on {settings.at}: {processes or 'no process yet; a controller is asked for names'}")
            while stop.signal is None:
                station.step(_LOOK_SECONDS)
            if stop.signal == signal.SIGTERM:  # a spot machine's notice
                say(_drained(station.drain(DRAIN_SECONDS), has_disks=settings.flush_seconds is not None))


def _drained(found: Drained, *, has_disks: bool) -> str:
    """What is left on a host that ends."""
    if not found.is_more:
        return "nothing is left here"
    kept = "what servers have is written to their disks" if has_disks else "it ends with these servers"
    if found.unknown:
        whose = ", ".join(found.unknown)
        return f"no controller has said what others took over of {whose}, so some may be left; {kept}"
    return f"{found.left} copies were not taken over by others; {kept}"
