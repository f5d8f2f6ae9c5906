"""`cotswold cluster start` and `add`: this host's part of a cluster of parameter servers.

Knows: the words of the commands. Does not know: which processes there are.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from cotswold.host import Token
    from cotswold.host.keyring import KeyringFile
    from cotswold.replication.metadata import Place
    from cotswold.replication.runtime.host_supervisor import StationSettings

_STOPPING = (
    "stopping: the processes of this host end; on SIGTERM other servers take over first, for 25 s at most; "
    "once more to leave at once"
)
_LEFT = "left at once; what servers had is on their disks, and on other hosts"


def start(
    *,
    listen: str = "127.0.0.1",
    controllers: str | None = None,
    servers: int = 2,
    folder: Path = Path("cluster"),
    token_file: Path | None = None,
    copies: int = 3,
    copies_min: int = 1,
    way: Literal["star", "chain"] = "star",
    flush_seconds: float = 1.0,
    disks: bool = True,
    etcd: str | None = None,
    etcd_ca: Path | None = None,
    etcd_cert: Path | None = None,
    etcd_key: Path | None = None,
    etcd_prefix: str = "cotswold/",
    updates: str | None = None,
    replication: str | None = None,
    name: str = "",
    ports: str | None = None,
    encrypt: bool = True,
) -> int:
    """Be a host of a cluster of parameter servers, until Ctrl-C or SIGTERM.

    The cluster outlives runs, which name its controllers: each of the parameters of a
    run has copies on several servers, and what was acknowledged outlives a server, a
    host, or, but for the last seconds, all of them. Start it on each host with the same
    --controllers, of which those run whose host is this one. One controller keeps its
    state in a file of its host; several need an etcd that all reach. This process
    starts again whatever of its host ends. Exit code 0: ended as asked; 1: something of
    this host cannot be used; 2: a mistake of the caller's. docs/operations.md

    Examples:

      cotswold cluster start --token-file token

      cotswold cluster start --listen a --controllers a,b,c --etcd a:2379,b:2379

      cotswold cluster start --servers 3 --copies 2 --flush-seconds 0.5

    Parameters
    ----------
    listen
        The address of this host by which others reach it.
    controllers
        HOST or HOST:PORT of all controllers of the cluster, with commas; port 7400 where none is said. The
        one of this host alone by default.
    servers
        Parameter servers of this host.
    folder
        A folder of this host's own, for what servers have on disk, logs and events.jsonl.
    token_file
        A file with the cluster's secret, which this user alone can read; made where it is not there. That
        in COTSWOLD_CLUSTER_TOKEN_FILE, COTSWOLD_CLUSTER_TOKEN or COTSWOLD_TOKEN by default.
    copies
        Of each part of the parameters, 1 to 5, on different servers, and on different hosts where there are.
    copies_min
        With fewer copies than that pushes wait.
    way
        How what changes comes to the copies: in a `star` the server that leads sends it to each, in a `chain`
        to one, which hands it on to the next. The same on all hosts.
    flush_seconds
        What changes is on disk after so long: what may be lost where all copies die at once.
    disks
        Whether servers keep on disk what they know.
    etcd
        HOST:PORT of the members of an etcd, in which several controllers keep their state.
    etcd_ca
        The file with the certificate of etcd's authority: connections are encrypted then.
    etcd_cert
        The file with a certificate of this client, where etcd asks for one.
    etcd_key
        The file with the key to that.
    etcd_prefix
        Before all keys, so that several clusters may share an etcd; 128 bytes at most.
    updates
        The address of this host at which clients push and pull, where it is another one.
    replication
        The address of this host at which servers send each other copies, where it is another one.
    name
        What servers of this host are called by; its address by default.
    ports
        The ports at which servers listen, FIRST-LAST; any by default.
    encrypt
        Whether everything between hosts is encrypted.
    """
    from cotswold.api.servers.cluster_host import made_tokens
    from cotswold.errors import UserError
    from cotswold.replication.controller.settings import Control
    from cotswold.replication.replica.settings import Copying
    from cotswold.replication.runtime.host_supervisor import StationSettings

    try:
        control = Control(copies=copies, least=copies_min)
    except ValueError as error:
        raise UserError(f"--copies {copies}, --copies-min {copies_min}: {error}") from error
    place = state_place(etcd, etcd_ca, etcd_cert, etcd_key, etcd_prefix)
    settings = StationSettings(
        listen,
        _named(controllers or listen),
        servers,
        folder,
        place,
        name,
        _roads(updates, replication),
        control,
        Copying(least=copies_min, way=way),
        flush_seconds if disks else None,
        encrypt,
        _ports(ports),
    )
    return _serve(settings, made_tokens(token_file))


def add(
    *,
    controllers: str,
    listen: str = "127.0.0.1",
    servers: int = 1,
    folder: Path = Path("cluster-added"),
    token_file: Path | None = None,
    copies_min: int = 1,
    way: Literal["star", "chain"] = "star",
    flush_seconds: float = 1.0,
    disks: bool = True,
    updates: str | None = None,
    replication: str | None = None,
    name: str = "",
    ports: str | None = None,
    encrypt: bool = True,
) -> int:
    """Add servers of this host to a cluster that runs, until Ctrl-C or SIGTERM.

    They are given copies while runs go on. Before they are taken away again, `cotswold
    cluster drain` has others take over what they have; without that the other copies go
    on, and new ones are made.

    Examples:

      cotswold cluster add --controllers a,b,c --listen d --token-file token

    Parameters
    ----------
    controllers
        HOST or HOST:PORT of the controllers of the cluster, with commas.
    listen
        The address of this host by which others reach it.
    servers
        Parameter servers of this host.
    folder
        A folder of this host's own, for what servers have on disk, logs and events.jsonl.
    token_file
        A file with the cluster's secret, which this user alone can read; that in
        COTSWOLD_CLUSTER_TOKEN_FILE, COTSWOLD_CLUSTER_TOKEN or COTSWOLD_TOKEN by default.
    copies_min
        As for the other hosts.
    way
        As for the other hosts.
    flush_seconds
        What changes is on disk after so long.
    disks
        Whether servers keep on disk what they know.
    updates
        The address of this host at which clients push and pull, where it is another one.
    replication
        The address of this host at which servers send each other copies, where it is another one.
    name
        What servers of this host are called by; its address by default.
    ports
        The ports at which servers listen, FIRST-LAST; any by default.
    encrypt
        Whether everything between hosts is encrypted.
    """
    from cotswold.api.servers.cluster_host import cluster_tokens
    from cotswold.replication.replica.settings import Copying
    from cotswold.replication.runtime.host_supervisor import StationSettings

    settings = StationSettings(
        at=listen,
        controllers=_named(controllers),
        servers=servers,
        folder=folder,
        name=name,
        roads=_roads(updates, replication),
        copying=Copying(least=copies_min, way=way),
        flush_seconds=flush_seconds if disks else None,
        encrypt=encrypt,
        ports=_ports(ports),
        has_controller=False,
    )
    return _serve(settings, cluster_tokens(token_file))


def _serve(settings: StationSettings, tokens: Token | KeyringFile) -> int:
    from cotswold.api.servers.cluster_host import serve_host
    from cotswold.api.signals import stopping
    from cotswold.run import Stop
    from cotswold.ui.progress import say

    stop = Stop()
    with stopping(stop, _STOPPING, _LEFT):
        serve_host(settings, tokens, stop, say)
    say("ended")
    return 0


def state_place(
    etcd: str | None, ca: Path | None, certificate: Path | None, key: Path | None, prefix: str
) -> Place | None:
    """The etcd in which controllers keep their state; None where none is named."""
    from cotswold.errors import UserError
    from cotswold.replication.metadata import Place

    if etcd is None:
        if ca or certificate or key:
            raise UserError("certificates are for an etcd; name it: --etcd HOST:PORT,HOST:PORT,HOST:PORT")
        return None
    files = [None if each is None else str(each.absolute()) for each in (ca, certificate, key)]
    return Place(None, _named(etcd), files[0], files[1], files[2], prefix)


def _named(controllers: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in controllers.split(",") if each.strip())


def _roads(updates: str | None, replication: str | None) -> dict[str, str]:
    given = {"updates": updates, "replication": replication}
    return {road: address for road, address in given.items() if address is not None}


def _ports(ports: str | None) -> tuple[int, int] | None:
    from cotswold.errors import UserError
    from cotswold.recipe.schema.cluster import port_range

    try:
        return port_range(ports)
    except ValueError as error:
        raise UserError(f"--ports {error}") from error
