"""Target: a leading controller with three servers, a run of three buckets, and a metadata store in memory.

Knows: the process of a controller, its invariants. Does not know: how messages are made.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, cast

from cotswold import wire as m
from cotswold.processes.supervisor_link import SupervisorLink
from cotswold.replication.controller.leader_election import Read
from cotswold.replication.controller.settings import ControllerSettings
from cotswold.replication.metadata.interface import PREFIX_BYTES_MAX, checked_transaction
from cotswold.replication.runtime.controller_process import ControllerProcess, MetadataThread
from cotswold.transport import Endpoint
from cotswold.wire import lifecycle as beginning
from cotswold.wire.messenger import Messenger, Received

from .descriptions import described, long, spoilt
from .parameter_server import ADDRESS, CLIENT, MASTER, RUN
from .target import BrokenError, NullEndpoint, NullMessenger, Target

NAME, STATION, SERVERS = "controller-1", "station-1/a", ("server-a-0", "server-a-1", "server-a-2")
_FAR_SECONDS = 1e6
_MOST_SERVERS = 64
_PREFIX = "p" * PREFIX_BYTES_MAX


class StillState:
    """A metadata store that replies at once."""

    def __init__(self) -> None:
        self.items: dict[str, str] = {}
        self._answers: list[Callable[[], None]] = []

    def fileno(self) -> int:
        """Return -1: no thread waits for the store."""
        return -1

    def submit(self, wish: Any, answered: Callable[[Any, Any], None]) -> None:
        """Execute a request; `run_callbacks` delivers the reply."""
        if isinstance(wish, Read):
            found: Any = {key: text for key, text in self.items.items() if key.startswith(wish.prefix)}
        else:
            try:
                checked_transaction(wish.compare, wish.put, _PREFIX)
            except ValueError as error:
                raise BrokenError(f"the metadata store rejects a put: {error}") from error
            found = all(self.items.get(key) == text for key, text in wish.compare)
            for key, text in wish.put if found else ():
                self._put(key, text)
        self._answers.append(partial(answered, wish, found))

    def _put(self, key: str, text: str | None) -> None:
        if text is None:
            self.items.pop(key, None)
            return
        self.items[key] = text

    def run_callbacks(self) -> None:
        """Deliver the replies."""
        answers, self._answers = self._answers, []
        for each in answers:
            each()


class ControllerTarget(Target):
    """The controller as a target."""

    def __init__(self) -> None:
        super().__init__()
        self._endpoint = NullEndpoint(ADDRESS)
        self._post = NullMessenger(self._endpoint)
        self._state = StillState()
        control = ControllerSettings(
            lease_seconds=_FAR_SECONDS, leader_seconds=_FAR_SECONDS, failure_report_seconds=0.0
        )
        self._role = ControllerProcess(
            *(NAME, cast(Messenger, self._post), cast(MetadataThread, self._state), control),
            *(cast(Endpoint, self._endpoint), SupervisorLink(ADDRESS, None)),
        )
        self._description = described(RUN)
        self._beats = 0
        self._begin()
        self.words = (
            *(*SERVERS, "server-b-0", STATION, NAME, m.COORDINATOR, CLIENT, MASTER, "mallory"),
            *self._description.buckets,
            *("run/9999", "other/0000", RUN, "other", "host", ADDRESS, "no address", self._description.text),
        )
        self.strangers = ("mallory", f"mallory.{RUN}", CLIENT)
        self.free = (m.Create, m.DeleteRunRequest, m.Drain, m.Undrain)
        self.kinds = (*m.MESSAGES, *beginning.MESSAGES)
        self.templates = self._templates()

    @property
    def _machine(self) -> Any:
        return self._role._machine

    def _tell(self, sender: str, message: Any) -> None:
        self._role._attend(Received(sender, message))

    def turn(self) -> None:
        """Advance as the controller's process does."""
        role, now = self._role, time.monotonic()
        role._deliver(role._machine.tick(now))
        role._machine.take_events()
        wish = role._machine.next_request(now)
        if wish is not None:
            self._state.submit(wish, role._on_result)
        self._state.run_callbacks()

    def _begin(self) -> None:
        deadline = time.monotonic() + 60
        self.turn()
        self._machine.election._unchanged_since = float("-inf")  # no leader for a long time
        while not self._machine.leads(time.monotonic()):
            if time.monotonic() > deadline:
                raise BrokenError("the controller does not become leader")
            self.turn()
        for server in SERVERS:
            self._beat(server)
        self._tell(MASTER, m.Create(RUN, self._description.text, self._description.buckets, 1))
        for _ in range(6):
            self.turn()

    def _beat(self, server: str) -> None:
        self._beats += 1
        self._tell(server, m.Heartbeat(server, "host", ADDRESS, self._beats, ()))

    def _templates(self) -> list[tuple[str, Any]]:
        bucket, first, second = self._description.buckets[0], SERVERS[0], SERVERS[1]
        group = self._machine.groups[bucket]
        return [
            (first, m.Heartbeat(first, "host", ADDRESS, 1, ((bucket, 1),), ((bucket, 2),), ADDRESS, (RUN,))),
            (second, m.Heartbeat(second, "host", ADDRESS, 1, ())),
            (first, m.Assigned(bucket, 1, first)),
            (first, m.FenceReply(bucket, 2, first, 1, 3)),
            (second, m.DiskStateReply(bucket, second, 1, 1, 3)),
            (group.primary, m.PeerUnreachable(bucket, group.term, group.primary, second)),
            (group.primary, m.LearnerCaughtUp(bucket, group.term, group.primary, second)),
            *[
                (each, m.PrimaryUnreachable(bucket, group.term, each, group.primary))
                for each in group.secondaries
            ],
            (STATION, m.ServerExited(SERVERS[2], "was killed")),
            (MASTER, m.LookupRequest(((bucket, 0),))),
            (MASTER, m.LookupRequest(())),
            (MASTER, m.Create("other", described("other").text, described("other").buckets, 1)),
            (MASTER, m.Create("another", "no description", ("another/0000", "run/0001"), -1)),
            (MASTER, m.DeleteRunRequest("other")),
            ("operator", m.Drain(second, 30.0)),
            ("operator", m.Undrain(second)),
            ("operator", m.StatusRequest()),
            (first, m.RunDescriptionRequest(RUN)),
            ("mallory", m.ServerExited(first, "says mallory")),
            ("mallory", m.Heartbeat("mallory", "host", ADDRESS, 1, ((bucket, 9),), ((bucket, 9),))),
            (CLIENT, m.Heartbeat(first, "host", "no address", 1, (), ((bucket, 1 << 40),))),
            (first, m.Heartbeat(first, "host", "no address", 1, ())),
        ]

    def scene(self, random: Random) -> list[tuple[str, Any]]:
        """Return the creation of a run with a long name, or with an invalid or long description."""
        number = random.randrange(1 << 20)
        run = random.choice((f"drawn{number}", f"{number}" * 100, "\u20ac" * 130, "r" * 300))
        chance = random.random()
        text = described(run).text if chance < 0.6 else spoilt(random, run) if chance < 0.9 else long(run)
        return [(MASTER, m.Create(run, text, (f"{run}/0000", f"{run}/0001"), 1))]

    def attend(self, letter: Received) -> None:
        """Handle a message as the controller's process does."""
        if not (isinstance(letter.message, beginning.StopProcess) and letter.sender == m.COORDINATOR):
            self._role._attend(letter)

    def guarded(self) -> object:
        """Return the state that only servers, supervisors and operators may change."""
        machine = self._machine
        servers = {name: (each.has_exited, each.is_alive) for name, each in machine.servers.of.items()}
        return machine.election.epoch, dict(machine.groups), machine.unsettled_buckets, servers

    def check(self) -> None:
        """Check that the controller leads, grants leases, and knows no more servers than allowed."""
        machine = self._machine
        if not machine.leads(time.monotonic()):
            raise BrokenError("the controller lost leadership")
        if len(machine.servers.of) > _MOST_SERVERS:
            raise BrokenError(f"the controller knows {len(machine.servers.of)} servers")
        leases, known = self._post.sent["LeaseGrant"], machine.servers.of.get(SERVERS[0])
        if known is None or known.has_exited or machine._state.elections.blocks_lease(SERVERS[0]):
            return  # the server must report its disk first
        self._beat(SERVERS[0])
        if self._post.sent["LeaseGrant"] == leases:
            raise BrokenError("a server gets no lease")

    def counts(self) -> Counter[str]:
        """Return the refused messages by kind."""
        return self.refused + self._endpoint.rejections

    def close(self) -> None:
        """Do nothing: the target has no resources."""
