"""`cotswold cluster start` and `add`: run this host's part of a parameter-server cluster.

Knows: the arguments of the commands. Does not know: the processes of a host.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from cotswold.host import Token
    from cotswold.host.keyring import KeyringFile
    from cotswold.replication.metadata import MetadataLocation
    from cotswold.replication.runtime.host_settings import HostSettings

_STOPPING = (
    "stopping the processes of this host; on SIGTERM other servers take over first, for at most 25 s; "
    "press again to stop at once"
)
_LEFT = "stopped at once; the servers' data are on their disks and on other hosts"


def start(
    *,
    listen: str = "127.0.0.1",
    controllers: str | None = None,
    servers: int = 2,
    folder: Path = Path("cluster"),
    token_file: Path | None = None,
    replication_factor: int = 3,
    replication_factor_min: int = 1,
    topology: Literal["star", "chain"] = "star",
    flush_seconds: float = 1.0,
    disks: bool = True,
    etcd: str | None = None,
    etcd_ca: Path | None = None,
    etcd_cert: Path | None = None,
    etcd_key: Path | None = None,
    etcd_prefix: str = "cotswold/",
    client_address: str | None = None,
    replication_address: str | None = None,
    name: str = "",
    ports: str | None = None,
    encrypt: bool = True,
) -> int:
    """Run this host's part of a parameter-server cluster, until Ctrl-C or SIGTERM.

    The cluster outlives runs, which connect to its controllers. Each bucket of a run's
    parameters has copies on several servers. Acknowledged updates survive the loss of a
    server or a host; if all copies die at once, only the last seconds are lost. Start the
    command on each host with the same --controllers; a controller runs on each host that
    is in this list. One controller keeps its state in a file of its host; several need an
    etcd that all can reach. This process restarts any process of its host that ends.
    Exit code 0: ended by a signal; 1: this host cannot run its part; 2: a user error.
    More: docs/operations.md

    Examples:

      cotswold cluster start --token-file token

      cotswold cluster start --listen a --controllers a,b,c --etcd a:2379,b:2379

      cotswold cluster start --servers 3 --replication-factor 2 --flush-seconds 0.5

    Parameters
    ----------
    listen
        The address of this host for other hosts.
    controllers
        HOST or HOST:PORT of all controllers of the cluster, separated by commas; default port 7400. Default:
        this host only.
    servers
        Number of parameter servers on this host.
    folder
        A local folder for the servers' data, logs and events.jsonl.
    token_file
        A file with the cluster's secret, readable by this user only; created if missing. Default:
        COTSWOLD_CLUSTER_TOKEN_FILE, COTSWOLD_CLUSTER_TOKEN or COTSWOLD_TOKEN.
    replication_factor
        Copies of each bucket, 1 to 5, on different servers, and on different hosts if possible.
    replication_factor_min
        With fewer copies than this, pushes wait.
    topology
        Replication topology: in a `star` the primary sends each change to all copies, in a `chain` to one,
        which forwards it to the next. The same on all hosts.
    flush_seconds
        Seconds until a change is on disk: the updates at risk if all copies die at once.
    disks
        Keep the servers' data on disk.
    etcd
        HOST:PORT of the members of an etcd, in which several controllers keep their state.
    etcd_ca
        The certificate file of etcd's authority; connections are then encrypted.
    etcd_cert
        The certificate file of this client, if etcd requires one.
    etcd_key
        The key file of that certificate.
    etcd_prefix
        Prefix of all keys, so that several clusters can share an etcd; 128 bytes at most.
    client_address
        The address of this host for pushes and pulls of clients, if different.
    replication_address
        The address of this host for copies between servers, if different.
    name
        Name prefix of this host's servers. Default: its address.
    ports
        The ports on which servers listen, FIRST-LAST. Default: any.
    encrypt
        Encrypt all traffic between hosts.
    """
    from cotswold.api.arguments import parse_ports
    from cotswold.api.servers.cluster_host import create_tokens
    from cotswold.errors import UserError
    from cotswold.replication.controller.settings import ControllerSettings
    from cotswold.replication.replica.settings import ReplicationSettings
    from cotswold.replication.runtime.host_settings import HostSettings

    try:
        control = ControllerSettings(
            replication_factor=replication_factor, replication_factor_min=replication_factor_min
        )
    except ValueError as error:
        raise UserError(
            f"--replication-factor {replication_factor}, --replication-factor-min {replication_factor_min}: "
            f"{error}"
        ) from error
    place = state_place(etcd, etcd_ca, etcd_cert, etcd_key, etcd_prefix)
    settings = HostSettings(
        listen,
        _controller_addresses(controllers or listen),
        servers,
        folder,
        place,
        name,
        _network_addresses(client_address, replication_address),
        control,
        ReplicationSettings(min_members=replication_factor_min, topology=topology),
        flush_seconds if disks else None,
        encrypt,
        parse_ports(ports),
    )
    return _serve(settings, create_tokens(token_file))


def add(
    *,
    controllers: str,
    listen: str = "127.0.0.1",
    servers: int = 1,
    folder: Path = Path("cluster-added"),
    token_file: Path | None = None,
    replication_factor_min: int = 1,
    topology: Literal["star", "chain"] = "star",
    flush_seconds: float = 1.0,
    disks: bool = True,
    client_address: str | None = None,
    replication_address: str | None = None,
    name: str = "",
    ports: str | None = None,
    encrypt: bool = True,
) -> int:
    """Add servers of this host to a running cluster, until Ctrl-C or SIGTERM.

    The servers receive copies while runs continue. Before you remove them, `cotswold
    cluster drain` moves their copies to other servers; without it the other copies take
    over, and new ones are made.

    Examples:

      cotswold cluster add --controllers a,b,c --listen d --token-file token

    Parameters
    ----------
    controllers
        HOST or HOST:PORT of the controllers of the cluster, separated by commas.
    listen
        The address of this host for other hosts.
    servers
        Number of parameter servers on this host.
    folder
        A local folder for the servers' data, logs and events.jsonl.
    token_file
        A file with the cluster's secret, readable by this user only. Default: COTSWOLD_CLUSTER_TOKEN_FILE,
        COTSWOLD_CLUSTER_TOKEN or COTSWOLD_TOKEN.
    replication_factor_min
        Same as on the other hosts.
    topology
        Same as on the other hosts.
    flush_seconds
        Seconds until a change is on disk.
    disks
        Keep the servers' data on disk.
    client_address
        The address of this host for pushes and pulls of clients, if different.
    replication_address
        The address of this host for copies between servers, if different.
    name
        Name prefix of this host's servers. Default: its address.
    ports
        The ports on which servers listen, FIRST-LAST. Default: any.
    encrypt
        Encrypt all traffic between hosts.
    """
    from cotswold.api.arguments import parse_ports
    from cotswold.api.servers.cluster_host import cluster_tokens
    from cotswold.replication.replica.settings import ReplicationSettings
    from cotswold.replication.runtime.host_settings import HostSettings

    settings = HostSettings(
        at=listen,
        controllers=_controller_addresses(controllers),
        servers=servers,
        folder=folder,
        name=name,
        networks=_network_addresses(client_address, replication_address),
        copying=ReplicationSettings(min_members=replication_factor_min, topology=topology),
        flush_seconds=flush_seconds if disks else None,
        encrypt=encrypt,
        ports=parse_ports(ports),
        has_controller=False,
    )
    return _serve(settings, cluster_tokens(token_file))


def _serve(settings: HostSettings, tokens: Token | KeyringFile) -> int:
    from cotswold.api.servers.cluster_host import serve_host
    from cotswold.api.signals import graceful_exit
    from cotswold.run import Stop
    from cotswold.ui.terminal import write_message, write_note

    stop = Stop()
    with graceful_exit(stop, _STOPPING, _LEFT):
        serve_host(settings, tokens, stop, write_message)
    write_note("ended")
    return 0


def state_place(
    etcd: str | None, ca: Path | None, certificate: Path | None, key: Path | None, prefix: str
) -> MetadataLocation | None:
    """Return the etcd in which controllers keep their state; None if none is given."""
    from cotswold.errors import UserError
    from cotswold.replication.metadata import MetadataLocation

    if etcd is None:
        if ca or certificate or key:
            raise UserError("certificates need an etcd; give --etcd HOST:PORT,HOST:PORT,HOST:PORT")
        return None
    files = [None if each is None else str(each.absolute()) for each in (ca, certificate, key)]
    return MetadataLocation(None, _controller_addresses(etcd), files[0], files[1], files[2], prefix)


def _controller_addresses(controllers: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in controllers.split(",") if each.strip())


def _network_addresses(client_address: str | None, replication_address: str | None) -> dict[str, str]:
    given = {"updates": client_address, "replication": replication_address}
    return {network: address for network, address in given.items() if address is not None}
