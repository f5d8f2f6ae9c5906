"""A host of a cluster of parameter servers that outlives runs: started, and served until it is asked to end.

Knows: where the secret is, words for what happens, the file that has it. Does not know: how servers work.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.api.servers.host_events import EventFile
from cotswold.errors import UserError
from cotswold.replication.controller.event_text import GATHERED, OF_BUCKETS
from cotswold.ui.doing import bytes_in_words
from cotswold.words import counted

if TYPE_CHECKING:
    from cotswold.host import Token
    from cotswold.host.keyring import KeyringFile
    from cotswold.replication.runtime.host_supervisor import Drained, StationSettings
    from cotswold.run import Stop

EVENTS = "events.jsonl"
DRAIN_SECONDS = 25.0
_LOOK_SECONDS = 0.2
_SERVER_BYTES = 300_000_000
"""Of its disk, which an empty server wants (docs/operations.md)."""
_ROOM_BYTES = 1_000_000_000
"""With fewer that are free whoever starts a host is warned."""
_QUIET = ("serving", *OF_BUCKETS)
"""Events that are written down and not said: of buckets it is said what has become of all with one cause, and
that a server is there by the host's controller, where it has one."""


def cluster_tokens(token: Path | None) -> Token | KeyringFile:
    """The secret of a cluster: in a file, which may be changed while it is in use; without one in that which
    COTSWOLD_CLUSTER_TOKEN_FILE names, in COTSWOLD_CLUSTER_TOKEN, or in COTSWOLD_TOKEN. Raises UserError for a
    file that is not there: one that was made would have no cluster's secret."""
    from cotswold.host.keyring import KeyringFile
    from cotswold.transport.token_rotation import tokens_of_cluster

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
    from cotswold.replication.runtime.host_supervisor import Station

    settings.folder.mkdir(parents=True, exist_ok=True)
    with EventFile(settings.folder / EVENTS, say) as file:

        def hear(kind: str, name: str, sentence: str) -> None:
            if kind != GATHERED:
                file.write(time=round(time.time(), 3), kind=kind, name=name, sentence=sentence)
            if kind not in _QUIET or (kind == "serving" and settings.own_controller is None):
                say(sentence)

        controller = "" if settings.own_controller is None else ", and a controller"
        servers = counted(settings.servers, "server")
        say(f"starting {servers}{controller} on {settings.at}; what happens is in {settings.folder / EVENTS}")
        if little := little_room(settings, shutil.disk_usage(settings.folder).free):
            say(f"warning: {little}")
        if few := few_servers(settings):
            say(few)
        with Station(settings, token, hear) as station:
            if processes := ", ".join(station.processes):
                say(f"serving on {settings.at}: {processes}")
            else:
                say(f"serving on {settings.at}; a controller is asked what its servers are to be called")
            say(next_commands(settings, token))
            while stop.signal is None:
                station.step(_LOOK_SECONDS)
            if stop.signal == signal.SIGTERM:  # a spot machine's notice
                say(_drained(station.drain(DRAIN_SECONDS), has_disks=settings.flush_seconds is not None))


def little_room(settings: StationSettings, free: int) -> str:
    """That the disk with the folder of a host has so few bytes free that its servers may soon find it full;
    empty where it has more. How much runs will need nobody knows."""
    wanted = max(_ROOM_BYTES, settings.servers * _SERVER_BYTES)
    if settings.flush_seconds is None or free >= wanted:
        return ""
    servers = counted(settings.servers, "server")
    each = f" ({bytes_in_words(_SERVER_BYTES)} each)" if wanted > _ROOM_BYTES else ""
    return (
        f"{bytes_in_words(free)} are free on the disk of {settings.folder.absolute()}, and {servers} should "
        f"have {bytes_in_words(wanted)}{each}, more with large runs: free some, or name a --folder on "
        "another disk"
    )


def few_servers(settings: StationSettings) -> str:
    """That the one host of a cluster has fewer servers than there are to be copies; empty where not."""
    copies, servers = settings.control.copies, counted(settings.servers, "server")
    if len(settings.controllers) > 1 or settings.own_controller is None or settings.servers >= copies:
        return ""
    return (
        f"with {servers} each part of the parameters has {counted(settings.servers, 'copy')}, and {copies} "
        "once there are more: give --servers, or `cotswold cluster add` on this or another host"
    )


def next_commands(settings: StationSettings, token: Token | KeyringFile) -> str:
    """What is typed next, to look at the cluster and to train on it."""
    from cotswold.host.keyring import KeyringFile
    from cotswold.replication.client.standalone_cluster import places_by_name

    places = ",".join(places_by_name(settings.controllers).values())
    setting = shlex.quote(f'cluster.parameter_servers="{places}"')
    file, environ = "", ""
    if isinstance(token, KeyringFile):
        path = shlex.quote(str(token.path.absolute()))
        file, environ = f" --token-file {path}", f"COTSWOLD_CLUSTER_TOKEN_FILE={path} "
    return (
        f"look at the cluster: cotswold cluster status --controllers {places}{file}; train on it, by a "
        f"recipe of strategy downpour: {environ}cotswold train RECIPE --set {setting}"
    )


def _drained(found: Drained, *, has_disks: bool) -> str:
    """What is left on a host that ends."""
    if not found.is_more:
        return "nothing is left here"
    kept = "what servers have is written to their disks" if has_disks else "it ends with these servers"
    if found.unknown:
        whose = ", ".join(found.unknown)
        return f"no controller has said what others took over of {whose}, so some may be left; {kept}"
    were = "was" if found.left == 1 else "were"
    return f"{counted(found.left, 'copy')} {were} not taken over by others; {kept}"
