"""A readable life: faults, and the messages of servers, clients and controllers about them.

Knows: words for the important messages of a failover. Does not know: invariants, randomness.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.chaos.simulation import Simulation
from tests.chaos.world import World

from cotswold.replication.controller.bucket_map import read_group
from cotswold.wire import (
    Applied,
    Assign,
    BucketEnvelope,
    DiskStateReply,
    Fence,
    FenceReply,
    Group,
    LearnerCaughtUp,
    PeerUnreachable,
    Prepare,
    Prepared,
    PrimaryUnreachable,
    Send,
    Update,
    UpdateRefused,
)


class Trace:
    """A life with these messages, deterministic step by step."""

    def __init__(self, seed: int, world: World) -> None:
        self.life = Simulation(seed, world)
        self._said: dict[tuple[str, str], str] = {}
        self._life_put, self.life.cast.state.watch = self.life.cast.state.watch, self._put
        self.life.cast.network.on_transmit = self._carried

    @property
    def transcript(self) -> Sequence[str]:
        """Lines of the transcript."""
        return self.life.transcript

    def _put(self, key: str, old: str | None, new: str | None) -> None:
        if key.startswith("bucket/") and new is not None:
            self.life.cast.tell(f"written down: {_of_group(read_group(new))}")
        self._life_put(key, old, new)

    def _carried(self, sender: str, send: Send) -> None:
        sentence = _sentence(send)
        # repeated messages appear once
        if sentence and self._said.get((sender, send.to)) != sentence:
            self._said[sender, send.to] = sentence
            self.life.cast.tell(f"{sender} → {send.to}: {sentence}")


def _of_group(group: Group) -> str:
    words = [f"{group.bucket}, term {group.term}: primary {group.primary}"]
    if group.secondaries:
        words.append(f"secondaries {', '.join(group.secondaries)}")
    if group.learners:
        words.append(f"learners {', '.join(group.learners)}")
    return "; ".join(words)


def _sentence(send: Send) -> str:
    match send.message:
        case BucketEnvelope(bucket, term, message):
            said = _of_client(message)
            return f"{bucket}, term {term}: {said}" if said else ""
        case Assign(_, group):
            return f"act by {_of_group(group)}"
        case Fence(_, bucket, term):
            return f"{bucket}: take part in no term below {term}"
        case FenceReply() as message:
            return f"{message.bucket}: fenced for term {message.term}, with index {message.index}"
        case Prepare() as message if message.change is not None:
            since = message.base_index
            what = "everything" if since < 0 else f"what is different since index {since}"
            return f"{message.bucket}, term {message.term}: prepare {what}, to index {message.index}"
        case Prepared() as message:
            lacks = ", and lacks what came before" if message.is_behind else ""
            return f"{message.bucket}, term {message.term}: has index {message.index}{lacks}"
        case LearnerCaughtUp() as message:
            return f"{message.bucket}, term {message.term}: {message.learner} has caught up"
        case PeerUnreachable() as message:
            return f"{message.bucket}, term {message.term}: {message.replica} is silent"
        case PrimaryUnreachable() as message:
            return f"{message.bucket}, term {message.term}: its primary is silent"
        case DiskStateReply() as message:
            return f"{message.bucket}: on disk from term {message.term}, index {message.index}"
        case _:
            return ""


def _of_client(message: object) -> str:
    match message:
        case Update() if message.samples:
            return f"update {message.number} of session {message.session}, samples {list(message.samples)}"
        case Applied():
            versions = dict(zip(message.shards, message.versions, strict=True))
            return f"update {message.number} of session {message.session} is applied; versions {versions}"
        case UpdateRefused():
            return f"update {message.number} of session {message.session} is refused: {message.reason}"
        case _:
            return ""
