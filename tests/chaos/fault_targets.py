"""What befalls somebody at a moment that matters: when something is replicated, elected, given, frozen.

Knows: kinds of messages that mark such moments, what befalls whoever says or hears them. Does not know: what
must be true.

Who is killed so is killed if another member lives as the groups are written down, whatever is under way: that
is where mistakes show. So a bucket may be lost, where a group without that one was on its way.
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
    """A primary hears that all who were to be members are."""
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
"""By name: whether a message is such a one."""


class FaultEffects:
    """What may befall a sender or a receiver."""

    def __init__(self, cast: SimulatedCluster, training: Training, troubles: FaultSchedule) -> None:
        self._cast, self._training, self._troubles = cast, training, troubles
        self._random = troubles.random

    def kill(self, one: str, other: str) -> None:
        """SIGKILL."""
        server = self._cast.server(one)
        if server is not None and self._cast.keeps({each.name for each in self._cast.living} - {one}):
            self._troubles.kill(server)

    def left(self, one: str, other: str) -> None:
        """It is the only server that is left."""
        if self._cast.server(one) is not None and self._cast.keeps({one}):
            for each in self._cast.living:
                if each.name != one:
                    self._troubles.kill(each)

    def all(self, one: str, other: str) -> None:
        """Every server dies, if there are disks."""
        if self._cast.disks:
            self._troubles.kill_all()

    def stop(self, one: str, other: str) -> None:
        """SIGSTOP, of whoever that is."""
        everybody = [*self._cast.servers, *self._cast.controllers, *self._training.replicas]
        for each in everybody:
            if each.name == one and each.is_alive:
                self._cast.stop(each, self._troubles.stop_seconds())

    def unheard(self, one: str, other: str) -> None:
        """The other does not hear it."""
        self._cut({(one, other)}, f"{other} does not hear {one}")

    def uncontrolled(self, one: str, other: str) -> None:
        """It hears no controller."""
        names = self._cast.roles.controllers
        self._cut(links(one, names, "in"), f"{one} hears no controller")

    def alone(self, one: str, other: str) -> None:
        """It hears no other server, or is heard by none, or both; clients and controllers do hear it."""
        others, ways = [each.name for each in self._cast.living], self._random.choice(("in", "out", "both"))
        self._cut(links(one, others, ways), f"{one} is cut ({ways}) from other servers")

    def apart(self, one: str, other: str) -> None:
        """It and some clients are apart from the others."""
        if self._cast.server(one) is not None:
            self._troubles.part(one)

    def astray(self, one: str, other: str) -> None:
        """Only some who read hear it and are heard, until after its lease."""
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
"""By name; in an aim ``sender killed``, ``receiver stopped``, and so on."""


_THEN_SECONDS = 6.0
"""For which what is aimed at next is."""


class FaultTargets:
    """The aims of one life."""

    def __init__(
        self, aims: tuple[Aim, ...], most: int, fates: FaultEffects, troubles: FaultSchedule
    ) -> None:
        self._aims = [(MOMENTS[each.moment], each) for each in aims]
        self._then: Aim | None = None
        self._until = 0.0
        """When that is aimed at no more."""
        self._left, self._fates, self._random = most, fates, troubles.random
        self._loop = troubles.cast.loop

    def sent(self, sender: str, send: Send) -> None:
        """Somebody says this."""
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
        self._loop.after(seconds, lambda: FATES[fate](self._fates, one, other))
