"""Messages between the ranks of one replica: requests to forward to servers, and their replies.

Knows: the fields. Does not know: which rank holds which shards.

The rank that leads the exchange with the servers decides which messages are due and sends them without
buffers. Each other rank adds its own buffers and sends its own messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.wire.of_updates import PulledNewer, PullNewer, Update


@dataclass(frozen=True)
class PullPart:
    """Send this pull to a server; answered by `PulledPart`."""

    server: str
    pull: PullNewer


@dataclass(frozen=True)
class PulledPart:
    """A rank has received the shards of a server's reply; the reply follows without its buffers."""

    server: str
    pulled: PulledNewer


@dataclass(frozen=True)
class PushPart:
    """Send this part of an update to a server, with the numbers of an accumulation; the server replies to the
    leading rank."""

    server: str
    closing: int
    """Number of the accumulation; all ranks count accumulations alike, in the order in which they close."""
    update: Update
