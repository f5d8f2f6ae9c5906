"""Settings of the endpoints of a cluster's processes.

Knows: the coordinator's host, endpoints. Does not know: peers, messages.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from cotswold.errors import MachineError, UserError
from cotswold.host import Token, address_towards, token_of
from cotswold.host.keyring import Keyring
from cotswold.processes.cluster_settings import ClusterSettings
from cotswold.transport import Endpoint
from cotswold.transport.address import Mode


@dataclass(frozen=True)
class EndpointSettings:
    """Network settings of a process; as plain values they are an argument of its program."""

    towards: str | None = None
    """Host of the coordinator; None if all processes are on one host."""
    encrypt: bool = True
    ports: tuple[int, int] | Sequence[int] | None = None
    """First and last port that the process may use; None for any."""
    lost_seconds: float = 30.0
    """Seconds until a host that acknowledges nothing counts as lost."""
    apart: bool = False
    """Behave as if each process had a separate host: see `Endpoint`."""
    at: str | None = None
    """Address of this machine for the others, if known more exactly than by ``towards``."""
    mode: Mode | None = None
    """Authentication of callers over TCP, if it does not follow from the rest: see `Endpoint`."""

    @classmethod
    def of(cls, settings: ClusterSettings, towards: str | None) -> EndpointSettings:
        """Derive them from a cluster's settings."""
        return cls(towards, settings.encrypt, settings.ports, settings.lost_seconds)

    def as_dict(self) -> dict[str, object]:
        """The settings as plain values."""
        return asdict(self)

    @property
    def one_of_ports(self) -> Sequence[int]:
        """The ports to choose from; empty for any."""
        return () if self.ports is None else range(self.ports[0], self.ports[1] + 1)


def open_endpoint(
    name: str, endpoint_settings: EndpointSettings, token: Token | Keyring | None = None
) -> Endpoint:
    """Create the endpoint of the process called ``name``, with this token or the one in the environment.

    Raises UserError without a token, MachineError if the coordinator's host cannot be reached.
    """
    token = token or token_of(os.environ)
    if token is None:
        raise UserError(f"{name} needs the run's token in COTSWOLD_TOKEN; a coordinator must start it")
    return Endpoint(
        token,
        name,
        host=endpoint_settings.at or local_address(endpoint_settings.towards),
        ports=endpoint_settings.one_of_ports,
        encrypt=endpoint_settings.encrypt,
        mode=endpoint_settings.mode,
        lost_seconds=endpoint_settings.lost_seconds,
        apart=endpoint_settings.apart,
    )


def local_address(towards: str | None) -> str | None:
    """The address of this machine towards the host ``towards``; None if all processes are on one host.

    Raises MachineError if that host cannot be reached.
    """
    if towards is None:
        return None
    found = address_towards(towards)
    if found is None:
        raise MachineError(
            f"this machine has no route to {towards}, the coordinator's host; check its network"
        )
    return found
