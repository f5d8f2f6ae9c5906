"""Faults aimed at critical moments: replication, election, assignment, freezing.

Knows: kinds of messages that mark such moments, the faults of their senders or receivers. Does not know:
invariants.

An aimed kill requires that another member lives in the stored groups, regardless of changes in flight:
mistakes show there. So a bucket may be lost if a group without that member was about to be stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.chaos.cluster_setup import SimulatedCluster
from tests.chaos.fault_schedule import FaultSchedule, links
from tests.chaos.training import Training
from tests.chaos.world import Aim

from cotswold.wire import (
    Applied,
    Assign,
    BucketEnvelope,
    CoordinatorStateAck,
    DiskStateReply,
    Fence,
    FenceReply,
    Heartbeat,
    LearnerCaughtUp,
    LeaseGrant,
    Prepare,
    Prepared,
    Send,
    Update,
)


def _is_change(send: Send) -> bool:
    return isinstance(send.message, Prepare) and send.message.change is not None


def _is_frozen(send: Send) -> bool:
    return isinstance(send.message, Prepare) and bool(send.message.change and send.message.change.frozen)


def _is_everything(send: Send) -> bool:
    message = send.message
    return isinstance(message, Prepare) and message.change is not None and message.base_index < 0


def _has_joined(send: Send) -> bool:
    """True if a primary learns that all future members have joined."""
    if not isinstance(send.message, Assign) or send.message.group.primary != send.to:
        return False
    group = send.message.group
    return group.term > 1 and bool(group.secondaries) and not group.learners


def _of(kind: type) -> Callable[[Send], bool]:
    return lambda send: isinstance(send.message, kind)


def _enclosed(kind: type) -> Callable[[Send], bool]:
    return lambda send: isinstance(send.message, BucketEnvelope) and isinstance(send.message.message, kind)


MOMENTS: Mapping[str, Callable[[Send], bool]] = {
    "push": _enclosed(Update),
    "acknowledged": _enclosed(Applied),
    "ordered": _enclosed(CoordinatorStateAck),
    "prepare": _is_change,
    "frozen": _is_frozen,
    "everything": _is_everything,
    "prepared": _of(Prepared),
    "caught": _of(LearnerCaughtUp),
    "fence": _of(Fence),
    "fenced": _of(FenceReply),
    "group": _of(Assign),
    "joined": _has_joined,
    "here": _of(Heartbeat),
    "lease": _of(LeaseGrant),
    "found": _of(DiskStateReply),
}
"""Predicates by name: True if a message marks the moment."""


class FaultEffects:
    """Faults of a sender or a receiver."""

    def __init__(self, cast: SimulatedCluster, training: Training, troubles: FaultSchedule) -> None:
        self._cast, self._training, self._troubles = cast, training, troubles
        self._random = troubles.random

    def kill(self, one: str, other: str) -> None:
        """Kill the process (SIGKILL)."""
        server = self._cast.server(one)
        if server is not None and self._cast.keeps({each.name for each in self._cast.living} - {one}):
            self._troubles.kill(server)

    def left(self, one: str, other: str) -> None:
        """Kill all other servers."""
        if self._cast.server(one) is not None and self._cast.keeps({one}):
            for each in self._cast.living:
                if each.name != one:
                    self._troubles.kill(each)

    def all(self, one: str, other: str) -> None:
        """Kill every server, if there are disks."""
        if self._cast.disks:
            self._troubles.kill_all()

    def stop(self, one: str, other: str) -> None:
        """Stop any process (SIGSTOP)."""
        everybody = [*self._cast.servers, *self._cast.controllers, *self._training.replicas]
        for each in everybody:
            if each.name == one and each.is_alive:
                self._cast.stop(each, self._troubles.stop_seconds())

    def unheard(self, one: str, other: str) -> None:
        """Drop messages from one process to the other."""
        self._cut({(one, other)}, f"{other} does not hear {one}")

    def uncontrolled(self, one: str, other: str) -> None:
        """Drop messages from all controllers."""
        names = self._cast.roles.controllers
        self._cut(links(one, names, "in"), f"{one} hears no controller")

    def alone(self, one: str, other: str) -> None:
        """Cut a server off from other servers, in one or both directions; clients and controllers still reach
        it."""
        others, ways = [each.name for each in self._cast.living], self._random.choice(("in", "out", "both"))
        self._cut(links(one, others, ways), f"{one} is cut ({ways}) from other servers")

    def apart(self, one: str, other: str) -> None:
        """Separate a server and some clients from the others."""
        if self._cast.server(one) is not None:
            self._troubles.part(one)

    def astray(self, one: str, other: str) -> None:
        """Let only some readers reach the server until after its lease."""
        readers = [each.name for each in self._training.readers]
        near = {one, *(each for each in readers if self._random.random() < 0.5)}
        everybody = [*(each.name for each in self._cast.living), *self._cast.roles.controllers]
        far = [each for each in [*everybody, *self._training.names] if each not in near]
        seconds = self._cast.roles.control.lease_seconds + self._random.uniform(0.5, 2)
        self._cast.cut(links(one, far, "both"), seconds, f"{one} is astray, with {', '.join(sorted(near))}")

    def _cut(self, links: set[tuple[str, str]], sentence: str) -> None:
        self._cast.cut(links, self._random.uniform(0.5, 3), sentence)


FATES: Mapping[str, Callable[[FaultEffects, str, str], None]] = {
    "killed": FaultEffects.kill,
    "left": FaultEffects.left,
    "all": FaultEffects.all,
    "stopped": FaultEffects.stop,
    "unheard": FaultEffects.unheard,
    "uncontrolled": FaultEffects.uncontrolled,
    "alone": FaultEffects.alone,
    "apart": FaultEffects.apart,
    "astray": FaultEffects.astray,
}
"""Faults by name, applied to the sender or the receiver: ``sender killed``, ``receiver stopped``, and so on.
"""


_THEN_SECONDS = 6.0
"""Seconds during which the next aim applies."""


class FaultTargets:
    """The aims of one life."""

    def __init__(
        self, aims: tuple[Aim, ...], most: int, fates: FaultEffects, troubles: FaultSchedule
    ) -> None:
        self._aims = [(MOMENTS[each.moment], each) for each in aims]
        self._then: Aim | None = None
        self._until = 0.0
        """Time at which the current aim ends."""
        self._left, self._fates, self._random = most, fates, troubles.random
        self._loop = troubles.cast.loop

    def sent(self, sender: str, send: Send) -> None:
        """Handle a sent message."""
        if self._left <= 0:
            return
        then = self._then if self._loop.now < self._until else None
        if then is not None and MOMENTS[then.moment](send) and self._random.random() < then.chance:
            self._befall(then, sender, send)
            return
        for is_it, aim in self._aims:
            if is_it(send) and self._random.random() < aim.chance:
                self._befall(aim, sender, send)

    def _befall(self, aim: Aim, sender: str, send: Send) -> None:
        self._left -= 1
        self._then, self._until = aim.then, self._loop.now + _THEN_SECONDS
        who, fate = self._random.choice(aim.faults).split()
        one, other = (sender, send.to) if who == "sender" else (send.to, sender)
        self._after(fate, one, other)

    def _after(self, fate: str, one: str, other: str) -> None:
        seconds = self._random.choice((0.0, 0.002, self._random.uniform(0, 0.3)))
        self._loop.schedule(seconds, lambda: FATES[fate](self._fates, one, other))
