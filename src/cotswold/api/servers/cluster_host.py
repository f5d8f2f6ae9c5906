"""A host of a persistent cluster of parameter servers, from its start to its end.

Knows: the secret, messages about events, the event file. Does not know: the servers' work.
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
from cotswold.phrases import counted
from cotswold.replication.controller.event_text import GATHERED, OF_BUCKETS
from cotswold.ui.format import bytes_in_words

if TYPE_CHECKING:
    from cotswold.host import Token
    from cotswold.host.keyring import KeyringFile
    from cotswold.replication.runtime.drain_progress import DrainProgress
    from cotswold.replication.runtime.host_settings import HostSettings
    from cotswold.run import Stop

EVENTS = "events.jsonl"
DRAIN_SECONDS = 25.0
_POLL_SECONDS = 0.2
_SERVER_BYTES = 300_000_000
"""Bytes of disk that an empty server needs (docs/operations.md)."""
_LOW_DISK_BYTES = 1_000_000_000
"""Free bytes below which the start of a host shows a warning."""
_QUIET = ("serving", *OF_BUCKETS)
"""Events that are written to the file but not shown.

Events of buckets are summarised by their cause. A controller of this host reports its servers itself.
"""


def cluster_tokens(token: Path | None) -> Token | KeyringFile:
    """Return the secret of a cluster.

    It is read from ``token``, a file that may change during use, else from the file named by
    COTSWOLD_CLUSTER_TOKEN_FILE, from COTSWOLD_CLUSTER_TOKEN, or from COTSWOLD_TOKEN. Raises UserError for a
    missing file: a new secret would not match the cluster's.
    """
    from cotswold.host.keyring import KeyringFile
    from cotswold.transport.token_rotation import tokens_of_cluster

    if token is not None:
        return KeyringFile(token)
    found = tokens_of_cluster(os.environ)
    if found is None:
        raise UserError(
            "the cluster needs a secret: give --token-file FILE, or set COTSWOLD_CLUSTER_TOKEN or "
            "COTSWOLD_CLUSTER_TOKEN_FILE"
        )
    return found


def create_tokens(token: Path | None) -> Token | KeyringFile:
    """Return the secret as `cluster_tokens` does, creating a missing file; for the start of a cluster."""
    from cotswold.host.keyring import KeyringFile

    return cluster_tokens(None) if token is None else KeyringFile.create(token)


def serve_host(
    settings: HostSettings,
    token: Token | KeyringFile,
    stop: Stop,
    show: Callable[[str], None] = lambda sentence: None,
) -> None:
    """Serve on this host until ``stop``; report events by ``show`` and in the host's folder."""
    from cotswold.replication.runtime.host_supervisor import HostSupervisor

    settings.folder.mkdir(parents=True, exist_ok=True)
    with EventFile(settings.folder / EVENTS, show) as file:

        def on_event(kind: str, name: str, sentence: str) -> None:
            if kind != GATHERED:
                file.write(time=round(time.time(), 3), kind=kind, name=name, sentence=sentence)
            if kind not in _QUIET or (kind == "serving" and settings.controller is None):
                show(sentence)

        controller = "" if settings.controller is None else ", and a controller"
        servers = counted(settings.servers, "server")
        show(f"starting {servers}{controller} on {settings.at}; events are in {settings.folder / EVENTS}")
        if little := low_disk_warning(settings, shutil.disk_usage(settings.folder).free):
            show(f"warning: {little}")
        if few := few_servers(settings):
            show(few)
        with HostSupervisor(settings, token, on_event) as supervisor:
            if processes := ", ".join(supervisor.processes):
                show(f"serving on {settings.at}: {processes}")
            else:
                show(f"serving on {settings.at}; requesting names of its servers from a controller")
            show(next_commands(settings, token))
            while stop.signal is None:
                supervisor.step(_POLL_SECONDS)
            if stop.signal == signal.SIGTERM:  # notice of a spot machine
                show(
                    _undrained_note(
                        supervisor.drain(DRAIN_SECONDS), has_disks=settings.flush_seconds is not None
                    )
                )


def low_disk_warning(settings: HostSettings, free: int) -> str:
    """Return a warning if the host's disk has few bytes free for its servers, else an empty string.

    The disk space that runs will need is unknown.
    """
    wanted = max(_LOW_DISK_BYTES, settings.servers * _SERVER_BYTES)
    if settings.flush_seconds is None or free >= wanted:
        return ""
    servers = counted(settings.servers, "server")
    each = f" ({bytes_in_words(_SERVER_BYTES)} each)" if wanted > _LOW_DISK_BYTES else ""
    return (
        f"{bytes_in_words(free)} are free on the disk of {settings.folder.absolute()}, but {servers} should "
        f"have {bytes_in_words(wanted)}{each}, more with large runs: free some, or use a --folder on "
        "another disk"
    )


def few_servers(settings: HostSettings) -> str:
    """Return a note if a cluster's only host has fewer servers than copies, else an empty string."""
    copies, servers = settings.control.replication_factor, counted(settings.servers, "server")
    if len(settings.controllers) > 1 or settings.controller is None or settings.servers >= copies:
        return ""
    return (
        f"with {servers} each part of the parameters has {counted(settings.servers, 'copy')} instead "
        f"of {copies}; add servers with --servers, or `cotswold cluster add` on this or another host"
    )


def next_commands(settings: HostSettings, token: Token | KeyringFile) -> str:
    """Return the commands to inspect the cluster and to train on it."""
    from cotswold.host.keyring import KeyringFile
    from cotswold.replication.client.standalone_cluster import addresses_by_name

    places = ",".join(addresses_by_name(settings.controllers).values())
    setting = shlex.quote(f'cluster.controllers="{places}"')
    file, environ = "", ""
    if isinstance(token, KeyringFile):
        path = shlex.quote(str(token.path.absolute()))
        file, environ = f" --token-file {path}", f"COTSWOLD_CLUSTER_TOKEN_FILE={path} "
    return (
        f"inspect the cluster: cotswold cluster status --controllers {places}{file}; train on it with a "
        f"recipe of strategy downpour: {environ}cotswold train RECIPE --set {setting}"
    )


def _undrained_note(found: DrainProgress, *, has_disks: bool) -> str:
    """Describe the data left on a host that ends."""
    if not found.is_incomplete:
        return "all data were handed over"
    kept = "the servers' state is on their disks" if has_disks else "their state is lost"
    if found.unknown:
        whose = ", ".join(found.unknown)
        return f"no controller confirmed the handover of {whose}, so it may be incomplete; {kept}"
    were = "was" if found.remaining == 1 else "were"
    return f"{counted(found.remaining, 'copy')} {were} not handed over; {kept}"
