"""A controller that leads: two servers, a run with three buckets, and a state in memory.

Knows: the process of a controller, what it must do afterwards. Does not know: how messages are made.
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
from .keeper import ADDRESS, CLIENT, MASTER, RUN
from .victim import BrokenError, StillEndpoint, StillPost, Victim

NAME, STATION, SERVERS = "controller-1", "station-1/a", ("server-a-0", "server-a-1", "server-a-2")
_FAR_SECONDS = 1e6
_MOST_SERVERS = 64
_PREFIX = "p" * PREFIX_BYTES_MAX


class StillState:
    """A state that answers at once."""

    def __init__(self) -> None:
        self.items: dict[str, str] = {}
        self._answers: list[Callable[[], None]] = []

    def fileno(self) -> int:
        """Nobody waits for it."""
        return -1

    def submit(self, wish: Any, answered: Callable[[Any, Any], None]) -> None:
        """Do it, and answer when that is taken."""
        if isinstance(wish, Read):
            found: Any = {key: text for key, text in self.items.items() if key.startswith(wish.prefix)}
        else:
            try:
                checked_transaction(wish.compare, wish.put, _PREFIX)
            except ValueError as error:
                raise BrokenError(f"the state does not take what is to be put: {error}") from error
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
        """Answer."""
        answers, self._answers = self._answers, []
        for each in answers:
            each()


class ControllerVictim(Victim):
    """That controller."""

    def __init__(self) -> None:
        super().__init__()
        self._endpoint = StillEndpoint(ADDRESS)
        self._post = StillPost(self._endpoint)
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
        """As its process goes on."""
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
        self._machine.election._since = float("-inf")  # nobody has led for long
        while not self._machine.leads(time.monotonic()):
            if time.monotonic() > deadline:
                raise BrokenError("it does not lead")
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
        """A run of a long name, or whose description is wrong, or long."""
        number = random.randrange(1 << 20)
        run = random.choice((f"drawn{number}", f"{number}" * 100, "\u20ac" * 130, "r" * 300))
        chance = random.random()
        text = described(run).text if chance < 0.6 else spoilt(random, run) if chance < 0.9 else long(run)
        return [(MASTER, m.Create(run, text, (f"{run}/0000", f"{run}/0001"), 1))]

    def attend(self, letter: Received) -> None:
        """As its process does."""
        if not (isinstance(letter.message, beginning.StopProcess) and letter.sender == m.COORDINATOR):
            self._role._attend(letter)

    def guarded(self) -> object:
        """What only servers, supervisors and whoever operates them may change."""
        machine = self._machine
        servers = {name: (each.has_exited, each.is_alive) for name, each in machine.servers.of.items()}
        return machine.election.epoch, dict(machine.groups), machine.unsettled_buckets, servers

    def check(self) -> None:
        """It leads, gives leases, and knows no more servers than there may be."""
        machine = self._machine
        if not machine.leads(time.monotonic()):
            raise BrokenError("it leads no more")
        if len(machine.servers.of) > _MOST_SERVERS:
            raise BrokenError(f"it knows {len(machine.servers.of)} servers")
        leases, known = self._post.sent["LeaseGrant"], machine.servers.of.get(SERVERS[0])
        if known is None or known.has_exited or machine._state.elections.blocks_lease(SERVERS[0]):
            return  # it is waited for: it says first what it has
        self._beat(SERVERS[0])
        if self._post.sent["LeaseGrant"] == leases:
            raise BrokenError("a server gets no lease")

    def counts(self) -> Counter[str]:
        """By kind."""
        return self.refused + self._endpoint.rejections

    def close(self) -> None:
        """It has nothing that is to be given back."""
