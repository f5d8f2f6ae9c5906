"""Where others reach this process.

Knows: the coordinator's host, endpoints. Does not know: who connects, messages.
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
class Reach:
    """How the processes of a cluster reach each other; as plain values it is an argument of theirs."""

    towards: str | None = None
    """The host of the coordinator; None where all processes are on one host."""
    encrypt: bool = True
    ports: tuple[int, int] | Sequence[int] | None = None
    """The first and the last port that they may take; None for any."""
    lost_seconds: float = 30.0
    """After how long a host that acknowledges nothing is taken for gone."""
    apart: bool = False
    """As if each process had a host of its own: see `Endpoint`."""
    at: str | None = None
    """The address of this machine at which it is reached, where it is known better than by ``towards``."""
    mode: Mode | None = None
    """How callers over TCP prove themselves, where it does not follow from the rest: see `Endpoint`."""

    @classmethod
    def of(cls, settings: ClusterSettings, towards: str | None) -> Reach:
        """As settings have it."""
        return cls(towards, settings.encrypt, settings.ports, settings.lost_seconds)

    def said(self) -> dict[str, object]:
        """As plain values."""
        return asdict(self)

    @property
    def one_of_ports(self) -> Sequence[int]:
        """The ports; none for any."""
        return () if self.ports is None else range(self.ports[0], self.ports[1] + 1)


def own_endpoint(name: str, reach: Reach, token: Token | Keyring | None = None) -> Endpoint:
    """The endpoint of the process called ``name``, which this token opens, or that in the environment.

    Raises UserError without one, MachineError where the coordinator's host cannot be reached.
    """
    token = token or token_of(os.environ)
    if token is None:
        raise UserError(f"{name} needs the run's token in COTSWOLD_TOKEN; let the coordinator start it")
    return Endpoint(
        token,
        name,
        host=reach.at or own_host(reach.towards),
        ports=reach.one_of_ports,
        encrypt=reach.encrypt,
        mode=reach.mode,
        lost_seconds=reach.lost_seconds,
        apart=reach.apart,
    )


def own_host(towards: str | None) -> str | None:
    """The address of this machine as the host ``towards`` sees it; None where all is on one host.

    Raises MachineError where that host cannot be reached.
    """
    if towards is None:
        return None
    found = address_towards(towards)
    if found is None:
        raise MachineError(
            f"this machine has no way to {towards}, where the coordinator is; see to its network"
        )
    return found
