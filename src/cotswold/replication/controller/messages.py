"""Messages that a controller receives, and the names of host supervisors.

Knows: which messages there are, which names belong to a supervisor. Does not know: their effect.
"""

from __future__ import annotations

from cotswold.wire import (
    COORDINATOR,
    Assigned,
    Create,
    DeleteRunRequest,
    DiskStateReply,
    Drain,
    FenceReply,
    Heartbeat,
    LearnerCaughtUp,
    LookupRequest,
    PeerUnreachable,
    PrimaryUnreachable,
    RunDescriptionRequest,
    ServerExited,
    StatusRequest,
    Undrain,
)

FromClients = (
    LookupRequest | Create | DeleteRunRequest | Drain | Undrain | StatusRequest | RunDescriptionRequest
)
"""Requests that get a reply. A controller that does not lead redirects the client."""
SUPERVISOR_PREFIX = "station-"
"""Prefix of the names of host supervisors."""
FromServers = (
    Heartbeat
    | Assigned
    | FenceReply
    | DiskStateReply
    | LearnerCaughtUp
    | PeerUnreachable
    | PrimaryUnreachable
    | ServerExited
    | FromClients
)


def is_host(sender: str) -> bool:
    """True if the sender supervises a host; on the controller's own host the coordinator does."""
    return sender == COORDINATOR or sender.startswith(SUPERVISOR_PREFIX)


def servers_of(host: str) -> str:
    """Return the prefix of the names of the servers on a supervisor's host, as far as known.

    >>> servers_of("station-3f/a"), servers_of("coordinator")
    ('server-a-', 'server-')
    """
    return "server-" if host == COORDINATOR else f"server-{host.partition('/')[2]}-"
