"""Settings of one host of a cluster, and the metadata in its folder.

Knows: addresses, names in the folder, how lost metadata are rebuilt. Does not know: processes.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cotswold.errors import CotswoldError, MachineError, UserError
from cotswold.replication.client.standalone_cluster import (
    parse_controller,
)
from cotswold.replication.controller.settings import ControllerSettings
from cotswold.replication.metadata import MetadataLocation
from cotswold.replication.replica.settings import ReplicationSettings
from cotswold.replication.runtime.server_names import ServerNames

_NON_NAME = re.compile(r"[^A-Za-z0-9_-]")
METADATA_FILE = "state.sqlite"
DISKS_FOLDER = "servers"
"""Names in a host's folder: the controllers' metadata, if in a file, and the servers' disks."""


@dataclass(frozen=True)
class HostSettings:
    """Settings of one host. Raises UserError if they are inconsistent."""

    at: str
    """Address of this host for controllers and servers of other hosts."""
    controllers: tuple[str, ...]
    """HOST:PORT of all controllers of the cluster; one runs here if ``at`` is one of these hosts."""
    servers: int
    folder: Path
    """Folder of this host: the servers' disks, logs, and the metadata if in a file."""
    place: MetadataLocation | None = None
    """Location of the controllers' metadata [a file in the folder]."""
    name: str = ""
    """Name of this host in the names of its servers [``at``]."""
    networks: Mapping[str, str] = field(default_factory=dict)
    """Addresses of this host by network (`replication.runtime.networks`)."""
    control: ControllerSettings = ControllerSettings()  # noqa: RUF009  # it is frozen
    copying: ReplicationSettings = ReplicationSettings()  # noqa: RUF009
    flush_seconds: float | None = 1.0
    """Seconds until a change is on disk; None for no disks."""
    encrypt: bool = True
    ports: tuple[int, int] | None = None
    has_controller: bool = True
    """False if only servers are added here, without a controller."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", _without_brackets(self.at))
        networks = {network: _without_brackets(address) for network, address in self.networks.items()}
        object.__setattr__(self, "networks", networks)
        if self.servers < 0 or (self.servers == 0 and self.controller is None):
            raise UserError(f"servers={self.servers} and no controller runs on {self.at}: nothing to do")
        self._check_addresses()
        if self.flush_seconds is not None and not self.flush_seconds > 0:
            raise UserError(f"flush_seconds must be more than 0, got {self.flush_seconds}")
        if self.place is None and len(self.controllers) > 1 and self.controller is not None:
            raise UserError(
                f"{len(self.controllers)} controllers need shared metadata; name an etcd: "
                "--etcd HOST:PORT,HOST:PORT,HOST:PORT"
            )

    def _check_addresses(self) -> None:
        for address in (self.at, *self.networks.values()):
            if _is_every(address):
                raise UserError(
                    f"{address} is not an address of this host for others; name one that it has on their "
                    "network, such as 10.0.0.1"
                )
        known = (port for host, port in map(parse_controller, self.controllers) if host == self.at)
        first, last = self.ports or (0, 0)
        if (taken := next((port for port in known if first <= port <= last), None)) is not None:
            raise UserError(
                f"--ports {first}-{last} includes the port {taken} of this host's controller, which a server "
                "could occupy; name a range without it"
            )

    @property
    def controller(self) -> tuple[str, int] | None:
        """Host and port of this host's controller."""
        if not self.has_controller:
            return None
        return next((each for each in map(parse_controller, self.controllers) if each[0] == self.at), None)

    @property
    def has_metadata(self) -> bool:
        """True if the metadata are in this host's folder."""
        return self.place is None and self.controller is not None

    @property
    def prefix(self) -> str:
        """Prefix of the names of this host's servers."""
        return f"server-{self.name or _NON_NAME.sub('-', self.at)}"


def recover_metadata(settings: HostSettings) -> str:
    """Rebuild lost metadata, and return what was done, in words; empty if nothing was."""
    disks = settings.folder / DISKS_FOLDER
    if not settings.has_metadata or settings.flush_seconds is None or not disks.is_dir():
        return ""
    from cotswold.replication.metadata_recovery import recover_alone

    try:
        return recover_alone(settings.folder / METADATA_FILE, disks)
    except CotswoldError as error:
        return f"cannot tell whether the controllers' state is lost; it is left as it is: {error}"


def require_metadata(settings: HostSettings) -> None:
    """Raise MachineError if the metadata were lost while in use: the next controller would begin another
    cluster."""
    if not settings.has_metadata or settings.flush_seconds is None:
        return
    from cotswold.replication.metadata_recovery import is_sound

    state = settings.folder / METADATA_FILE
    try:
        is_there = is_sound(state)
    except CotswoldError:  # the file exists; its next user reports why it fails
        is_there = True
    if not is_there:
        raise MachineError(
            f"{state} was removed or damaged while it was in use; start this host again: it makes the state "
            "again from its servers' disks"
        )


def refuse_foreign_disks(settings: HostSettings, names: ServerNames) -> None:
    """Raise UserError if the folder has disks of another host."""
    folder = settings.folder / DISKS_FOLDER
    if settings.flush_seconds is None or not folder.is_dir():
        return
    if strange := names.foreign(each.name for each in folder.iterdir() if each.is_dir()):
        raise UserError(
            f"{folder} has {', '.join(strange)}, which is the disk of no {settings.prefix}-NUMBER: "
            "give the --listen and --name of the host that had these disks, or another --folder"
        )


def _without_brackets(address: str) -> str:
    """Return an IPv6 address without brackets."""
    inner = address.removeprefix("[").removesuffix("]")
    return inner if address == f"[{inner}]" else address


def _is_every(address: str) -> bool:
    """True if the address stands for all addresses of a machine."""
    try:
        return ipaddress.ip_address(address).is_unspecified
    except ValueError:  # a host name
        return False
