"""Target: a parameter server that is primary of one bucket, secondary of another, and lacks a third.

Knows: the process of such a server, its invariants. Does not know: how messages are made.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any, cast

import numpy as np

from cotswold import wire as m
from cotswold.processes.supervisor_link import SupervisorLink
from cotswold.replication.replica.group_member import ReplicaRole
from cotswold.replication.replica.settings import ReplicationSettings
from cotswold.replication.run_description import Description
from cotswold.replication.runtime.networks import NetworkEndpoints
from cotswold.replication.runtime.server_process import ReplicaServerProcess
from cotswold.transport import Endpoint
from cotswold.transport.address import Address
from cotswold.wire import lifecycle as beginning
from cotswold.wire.messenger import Messenger, Received

from .descriptions import described, spoilt
from .target import BrokenError, NullEndpoint, NullMessenger, Target

OWN, OTHER, CONTROLLER, RUN = "server-1", "server-2", "controller-1", "run"
LED, FOLLOWED, UNKNOWN = f"{RUN}/0000", f"{RUN}/0001", f"{RUN}/0002"
CLIENT, MASTER = f"replica-1.{RUN}", f"coordinator.{RUN}"
ADDRESS = str(Address("host", 1, "challenge", "ipc:///tmp/nowhere", "tcp://127.0.0.1:1", "hmac"))
_LEASE_SECONDS = 1e6
_SPOKE = 8
"""Number of servers whose messages the target may remember."""


class ServerTarget(Target):
    """The server as a target, with a replica's session of each bucket."""

    def __init__(self) -> None:
        super().__init__()
        self._endpoint = NullEndpoint(ADDRESS)
        self._post = NullMessenger(self._endpoint)
        endpoint = cast(Endpoint, self._endpoint)
        ways = NetworkEndpoints(endpoint, endpoint, endpoint)
        copying = ReplicationSettings(saves=True)
        self._role = ReplicaServerProcess(
            *(OWN, "host", cast(Messenger, self._post), {CONTROLLER: ADDRESS}, copying, ways),
            SupervisorLink(ADDRESS, None),
        )
        self._machine = self._role._machine
        self._description = described(RUN)
        self._shards = {
            bucket: tuple(each.number for each in self._description.shards if each.server == bucket)
            for bucket in self._description.buckets
        }
        self._pulls = 0
        self._begin()
        self.words = (
            *(OWN, OTHER, "server-3", CONTROLLER, m.COORDINATOR, CLIENT, MASTER, "replica-1", "mallory"),
            *(LED, FOLLOWED, UNKNOWN, "run/9999", "other/0000", RUN, "other", "x", "weights", "momentum"),
            *(ADDRESS, "no address", "gradient", "delta", "factors", self._description.text, "{}", "[1]"),
        )
        self.strangers = ("mallory", f"mallory.{RUN}", "replica-7.other", OTHER)
        self.kinds = (*m.MESSAGES, *beginning.MESSAGES)
        self.templates = self._templates()

    # --- a working server ---

    def _tell(self, sender: str, message: Any) -> None:
        self._role._attend(Received(sender, message))

    def _begin(self) -> None:
        self._tell(CONTROLLER, m.RunDescription(RUN, self._description.text))
        groups = (m.Group(LED, 1, OWN, (OTHER,)), m.Group(FOLLOWED, 1, OTHER, (OWN,)))
        for group in groups:
            self._tell(CONTROLLER, m.Assign(1, group))
        self._lease()
        for bucket in (LED,):
            numbers = tuple(np.zeros(16, np.float32).tobytes() for _ in self._shards[bucket])
            self._tell(MASTER, m.BucketEnvelope(bucket, 1, m.Write(1, "x", self._shards[bucket], numbers)))
            self._tell(
                MASTER,
                m.BucketEnvelope(bucket, 1, m.CoordinatorState(1, ((1, "replica-1"),), ((1, 0.1),), 0, 0)),
            )
        self._role._flush_and_drain()

    def _lease(self) -> None:
        machine = self._machine
        number = machine.lease.request(time.monotonic())
        self._tell(CONTROLLER, m.LeaseGrant(machine._epoch, OWN, number, _LEASE_SECONDS))

    def _templates(self) -> list[tuple[str, Any]]:
        shards = self._shards[LED]
        numbers = tuple(np.ones(16, np.float32).tobytes() for _ in shards)
        versions = (0,) * len(shards)
        update = m.Update(RUN, 1, 1, "gradient", shards, versions, 1, 1.0, ((0, 4),), 0, (), numbers)
        group = m.Group(LED, 2, OWN, (OTHER,))
        return [
            (CLIENT, m.BucketEnvelope(LED, 1, update)),
            (CLIENT, m.BucketEnvelope(LED, 1, m.PullNewer(RUN, 1, 1, shards, versions))),
            (CLIENT, m.BucketEnvelope(LED, 1, m.Applied(1, "x", 1, shards, versions, 0))),
            (MASTER, m.BucketEnvelope(LED, 1, m.CoordinatorState(2, ((1, "replica-1"),), ((1, 0.1),), 1, 0))),
            (MASTER, m.BucketEnvelope(LED, 1, m.PullFrozen(1, "x", shards))),
            (MASTER, m.BucketEnvelope(LED, 1, m.Pull(1, 1, "x", shards))),
            (MASTER, m.BucketEnvelope(LED, 1, m.Write(2, "x", shards, numbers))),
            (OTHER, m.Prepared(LED, 1, OTHER, 1, False, 1)),
            (OTHER, self._prepare(FOLLOWED)),
            (OTHER, m.Prepare(FOLLOWED, 1, 1, 1, 1, None)),
            (CONTROLLER, m.Assign(1, group)),
            (CONTROLLER, m.Fence(1, LED, 2)),
            (CONTROLLER, m.DiskStateRequest(1, UNKNOWN)),
            (CONTROLLER, m.LeaseGrant(1, OWN, 1, 1.0)),
            (CONTROLLER, m.DeleteRun(1, "other")),
            (CONTROLLER, m.RunDescription(RUN, self._description.text)),
            (CONTROLLER, m.RunDescription("other", described("other").text)),
            (CONTROLLER, beginning.PeerAddresses(((OTHER, ADDRESS),), ((OTHER, "key"),))),
            (m.COORDINATOR, beginning.ControllerAddresses((("controller-2", ADDRESS),))),
            ("operator", beginning.ServerReportRequest(LED)),
            ("operator", beginning.ExportRequest(LED)),
            (MASTER, beginning.CountersRequest(RUN)),
            ("mallory", m.LeaseGrant(1 << 40, OWN, 1, 1e9)),
            ("mallory", m.Assign(1 << 40, group)),
            ("mallory", m.Fence(1, LED, 1 << 40)),
            ("mallory", m.DeleteRun(1, RUN)),
            ("mallory", m.DiskStateRequest(1, LED)),
        ]

    def _prepare(self, bucket: str) -> m.Prepare:
        shards = self._shards[bucket]
        order = m.CoordinatorState(1, ((1, "replica-1"),), ((1, 0.1),), 0, 0)
        session = m.SessionState(1, "replica-1", 0, None, None, (), (), 0, 0, 0)
        numbers = tuple(np.ones(16, np.float32).tobytes() for _ in shards)
        change = m.BucketChange(
            *(shards, (1,) * len(shards), (session,), (1,), (), (), (), 0, 0),
            *(order, None, 0),
        )
        return m.Prepare(bucket, 1, -1, 1, 1, change, ("x",), numbers)

    def scene(self, random: Random) -> list[tuple[str, Any]]:
        """Return a run with an invalid description, followed by its updates in case the server accepts it."""
        run = f"drawn{random.randrange(1 << 20)}"
        bucket, shards = f"{run}/0000", self._shards[LED]
        numbers = tuple(np.ones(16, np.float32).tobytes() for _ in shards)
        master, client, versions = f"coordinator.{run}", f"replica-1.{run}", (0,) * len(shards)

        def update(number: int, kind: str, examples: tuple[int, ...]) -> m.BucketEnvelope:
            fields = run, 1, number, kind, shards, versions, 1, 1.0, ((0, 4),), 0, examples, numbers
            return m.BucketEnvelope(bucket, 1, m.Update(*fields))

        return [
            (CONTROLLER, m.RunDescription(run, spoilt(random, run))),
            (CONTROLLER, m.Assign(self._machine._epoch, m.Group(bucket, 1, OWN, ()))),
            (master, m.BucketEnvelope(bucket, 1, m.Write(1, "x", shards, numbers))),
            (
                master,
                m.BucketEnvelope(bucket, 1, m.CoordinatorState(1, ((1, "replica-1"),), ((1, 0.1),), 0, 0)),
            ),
            (client, update(1, "gradient", ())),
            (client, update(2, "factors", (1,) * len(shards))),
            (client, m.BucketEnvelope(bucket, 1, m.PullNewer(run, 1, 1, shards, versions))),
        ]

    # --- reaction to invalid messages ---

    def attend(self, letter: Received) -> None:
        """Handle a message as the server's process does."""
        if not (isinstance(letter.message, beginning.StopProcess) and letter.sender == m.COORDINATOR):
            self._role._attend(letter)

    def turn(self) -> None:
        """Advance as the server's process does, with every save confirmed."""
        if self._role._processed >= 8:
            self._role._flush_and_drain()
            self._role._tick(time.monotonic())
            for number, _ in self._machine.saves():
                self._machine.saved(number)

    def is_stranger(self, sender: str) -> bool:
        """True if a sender is no controller; the server's coordinator may have named it as one."""
        return sender in self.strangers and sender not in self._role._controllers

    def guarded(self) -> object:
        """Return the state that only controllers may change."""
        machine = self._machine
        copies = {name: (each.role, each.group, each.fence) for name, each in machine.copies.items()}
        return (
            machine._epoch,
            machine.lease.end,
            copies,
            tuple(self._role._runs._of),
            self._role._controllers,
        )

    def check(self) -> None:
        """Check that the server has copies of described buckets only, and answers authorized requests."""
        machine, role = self._machine, self._role
        runs: Mapping[str, Description] = role._runs._of
        known = {bucket for each in runs.values() for bucket in each.buckets}
        if not machine.copies.keys() <= known:
            raise BrokenError(f"the server has copies of {sorted(machine.copies.keys() - known)[:3]}")
        if len(machine._activity.last_received) > _SPOKE or len(role._clients._names) > 64 * _SPOKE:
            raise BrokenError("the server remembers every sender")
        self._check_pull()

    def _check_pull(self) -> None:
        """Check that a pull is answered if the server leads the bucket."""
        copy = self._machine.copies.get(LED)
        if copy is None or copy.role is not ReplicaRole.PRIMARY or copy.fence > copy.group.term:
            return
        self._lease()
        self._role._flush_and_drain()
        answers = self._post.sent["BucketEnvelope"] + self._post.sent["NotPrimary"]
        self._pulls -= 1
        copy.committed = copy.state.index  # as if the secondaries had confirmed everything
        pull = m.PullNewer(RUN, 0, self._pulls, self._shards[LED], (-1,) * len(self._shards[LED]))
        self._tell(CLIENT, m.BucketEnvelope(LED, copy.group.term, pull))
        self._role._flush_and_drain()
        after = self._post.sent["BucketEnvelope"] + self._post.sent["NotPrimary"]
        if copy.is_acting(time.monotonic()) and after == answers:
            raise BrokenError("a pull gets no reply")

    def counts(self) -> Counter[str]:
        """Return the refused messages by kind."""
        found = self.refused + self._endpoint.rejections
        for copy in self._machine.copies.values():
            found.update({f"update: {kind}": count for kind, count in copy.state.updates.rejections.items()})
        return found

    def close(self) -> None:
        """Do nothing: the target has no resources."""
