"""Between the ranks of one replica: what each is to say to the servers, and what it has heard.

Knows: the fields. Does not know: which rank has which shards.

The rank that has the conversation says what is due, by messages to servers without their buffers; each other
rank sends its own, to which it adds the numbers.
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
    """A rank has the shards that a server has answered with; what it says of them, without buffers."""

    server: str
    pulled: PulledNewer


@dataclass(frozen=True)
class PushPart:
    """Send this part of an update to a server, with numbers of an accumulation; the server answers whoever
    has the conversation."""

    server: str
    closing: int
    """Which accumulation: they are counted as they are closed, on all ranks alike."""
    update: Update
