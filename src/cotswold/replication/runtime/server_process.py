"""The process of a replica server: the server, with this process's memory and sockets.

Knows: the endpoint, when to drain the queues, the descriptions of runs. Does not know: groups, when replies
may be sent (`replication.replica`).

Messages that have arrived are processed first, so no pull waits behind updates. Updates are applied when no
message is left, or when many wait. So several pushes are one change, which the other replicas receive once.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

from cotswold.host import keep_freed_bytes
from cotswold.paramserver.runtime.server_metrics import Work
from cotswold.processes.endpoint_settings import EndpointSettings
from cotswold.processes.supervisor_link import SupervisorLink
from cotswold.replication.client.client_names import Clients
from cotswold.replication.replica.bucket_replica import Role
from cotswold.replication.replica.server import Keeper, ToKeeper
from cotswold.replication.replica.settings import Copying
from cotswold.replication.run_description import Description
from cotswold.replication.runtime.disk import Disk, open_disk
from cotswold.replication.runtime.networks import Ways, open_ways
from cotswold.replication.runtime.persistence import Saving
from cotswold.replication.runtime.server_report import exported, reported
from cotswold.shards.runtime.arithmetic import Array
from cotswold.transport import Lost, Ready
from cotswold.transport.address import Address
from cotswold.transport.token_rotation import TokenRotation
from cotswold.wire import (
    CONTROLLERS,
    COORDINATOR,
    Assign,
    Describe,
    Described,
    Elsewhere,
    Fence,
    FindSaved,
    Forget,
    Here,
    Leased,
    Message,
    OfBucket,
    Prepare,
    Prepared,
    PullNewer,
    Send,
    Update,
)
from cotswold.wire.lifecycle import (
    FINISH_SECONDS,
    Controllers,
    Count,
    Export,
    Finish,
    Happened,
    Parts,
    Peers,
    Report,
    Serving,
    Unsaved,
)
from cotswold.wire.messenger import AnyMessage, Calling, Letter, Post
from cotswold.wire.names import run_of
from cotswold.words import short_in_words

_TICK_SECONDS = 0.05
_ROOM_SECONDS = FINISH_SECONDS / 2
"""Seconds to wait, at the end, for room in the disk's queue."""
_BATCH = 256
"""Maximum number of messages between two applications of waiting updates."""
_UNREAD_BYTES = 1 << 24
"""Unread bytes of a client from which on it gets no further reply to a pull."""
_SAY_SECONDS = 10.0
"""Minimum interval between two events about a malformed description."""
_HEARD = get_args(ToKeeper)
_OFTEN = (OfBucket, Prepare, Prepared)


def main(
    *,
    name: str,
    host: str,
    coordinator: str,
    controllers: Mapping[str, str],
    reach: Mapping[str, Any],
    copying: Mapping[str, Any],
    disk: str | None = None,
    flush_seconds: float = 1.0,
    roads: Mapping[str, str] | None = None,
    tokens: str | None = None,
    key: str = "",
) -> int:
    """Run the server ``name`` on ``host``, whose coordinator is at the address ``coordinator``.

    ``controllers``: address by name; ``reach`` has the fields of `EndpointSettings`, ``copying`` those of
    `ReplicationSettings`. The folder ``disk``, if any, has the state of ``flush_seconds`` ago. ``roads``:
    addresses of this machine for `REPLICATION` and `UPDATES`, if different from that of ``reach``. The tokens
    are in the file ``tokens``, or the token is in the environment. ``key`` proves this server's name to
    controllers and other servers. Raises MachineError if the coordinator exits first, and the errors of the
    disk.
    """
    keep_freed_bytes()  # of messages: the next ones reuse the same pages
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the coordinator stops it after the processes that need it
    with ExitStack() as held:
        ring = TokenRotation.of_file(tokens)
        ways = open_ways(
            name, EndpointSettings(**reach), roads or {}, held, None if ring is None else ring.ring
        )
        ways.administration.connect(COORDINATOR, coordinator)
        post = Post(ways.all)
        post.send(COORDINATOR, Serving(name, ways.administration.address))
        saving = replace(Copying(**copying), saves=disk is not None)
        role = KeeperRole(name, host, post, controllers, saving, ways, SupervisorLink(coordinator, ring), key)
        if disk is None:
            role.run()
        else:
            with open_disk(Path(disk), flush_seconds, role.saved, role.damaged, role.trouble) as own:
                role.save(own, flush_seconds)
                role.run()
                role.finish()
    return 0


class KeeperRole:
    """Process of one replica server."""

    def __init__(
        self,
        name: str,
        host: str,
        post: Post,
        controllers: Mapping[str, str],
        copying: Copying,
        ways: Ways,
        bond: SupervisorLink,
        key: str = "",
    ) -> None:
        self._key = key
        self._name, self._post, self._controllers, self._ways = name, post, dict(controllers), ways
        self._runs: dict[str, Description] = {}
        self._machine: Keeper[Array] = Keeper(
            *(name, host, ways.updates.address, self._contents, copying, time.monotonic()),
            ways.replication.address,
        )
        self._bond = bond
        for way in ways.each:
            way.key = key
            way.keep(COORDINATOR)
        self._keep_answers(controllers)
        self._calling = Calling(lambda address: ways.administration)
        self._peers: dict[str, str] = {}
        """Servers of its buckets and their addresses."""
        self._meeting = Calling(lambda address: ways.replication)
        self._clients = Clients()
        self._work = Work()
        self._is_due = False
        """True if a message has arrived since queues were drained: held updates wait for that."""
        self._sends: list[Send] = []
        """Messages to be sent together."""
        self._spoken: set[str] = set()
        """Buckets whose numbers, in place in memory, may be part of these."""
        self._heard = 0
        """Number of messages processed since these were sent."""
        self._ticked = 0.0
        self._disk: Disk | None = None
        self._malformed: tuple[str, float] | None = None
        """A run with a malformed description, and the time of the last event about it."""
        self._short = 0, 0
        """Buckets that waited for members at the last event about them."""
        self._saving: Saving | None = None

    def save(self, disk: Disk, flush_seconds: float) -> None:
        """Save changes to a disk within ``flush_seconds``."""
        self._disk = disk
        self._machine.found_on_disk(disk.buckets, disk.cluster)
        self._saving = Saving(self._machine, disk, flush_seconds, time.monotonic())
        self._post.endpoint.watch(disk.fileno())

    def run(self) -> None:
        """Serve until the coordinator stops it; raises MachineError if the coordinator is lost."""
        while self._attend(self._post.receive(0.0 if self._is_due or self._sends else _TICK_SECONDS)):
            if self._heard >= _BATCH:
                self._go_on()
            self._tick(time.monotonic())

    def finish(self) -> None:
        """Apply the waiting updates, and give the disk all changes, as far as it has room within a while."""
        self._go_on()
        deadline = time.monotonic() + _ROOM_SECONDS
        while self._saving is not None and not self._saving.finish(time.monotonic()):
            if time.monotonic() > deadline:
                self.trouble("it stops, and its disk has no room for all changes")
                return
            time.sleep(_TICK_SECONDS)

    def _attend(self, event: object) -> bool:
        """Process an event; False to stop. Only kept messages are referenced afterwards."""
        match event:
            case Letter(sender, Finish()) if sender == COORDINATOR:
                return False
            case Letter(sender, message):
                self._hear(sender, message)
            case None:
                self._go_on()
            case Ready() if self._disk is not None:
                self._disk.take()
            case Lost(peer, why) if peer == COORDINATOR and self._bond.lost(time.monotonic()):
                raise self._bond.over(self._name, why)
            case _:
                pass
        return True

    def _hear(self, sender: str, message: AnyMessage) -> None:
        if isinstance(message, _OFTEN):  # the most frequent ones
            self._do(sender, message)
            return
        match message:
            case Peers(addresses, keys) if sender in self._controllers:
                for name, pair in keys:
                    for way in self._ways.each:
                        way.vouch(name, pair)
                self._meet(dict(addresses))
            case Controllers(addresses) if sender == COORDINATOR:
                known = [each for each in addresses if not each[1] or Address.is_one(each[1])]
                self._controllers.update(known)
                self._keep_answers(name for name, _ in known)
            case Described(run, description) if sender in self._controllers:
                if description and run not in self._runs:
                    self._learn(run, description)
            case Report(bucket):
                self._post.send(sender, reported(self._machine, self._ways, self._unsaved(), bucket))
            case Export(bucket):
                whole = exported(self._machine, bucket) or [
                    reported(self._machine, self._ways, self._unsaved(), bucket)
                ]
                self._post.deliver([Send(sender, cast(Message, each)) for each in whole])
            case Count(run):
                self._post.send(sender, self._counts(run))
            case Assign() | Fence() | FindSaved() | Forget() | Leased() if sender not in self._controllers:
                self._post.endpoint.refused["strangers"] += 1
            case Assign() | Fence() | FindSaved() if run_of(_bucket(message)) not in self._runs:
                self._post.send(sender, Describe(run_of(_bucket(message))))  # the controller sends it again
            case Assign() | Fence() | FindSaved() if not self._is_known(_bucket(message)):
                self._post.endpoint.refused["malformed"] += 1
            case Forget():
                self._do(sender, message)
                self._let_go()
            case _ if isinstance(message, _HEARD):
                self._do(sender, cast(ToKeeper, message))
            case _:
                pass

    def _meet(self, addresses: Mapping[str, str]) -> None:
        """Update the addresses of servers; those without a common bucket are not called again."""
        groups = (each.group for each in self._machine.copies.values())
        known = {name for group in groups for name in group.everybody}
        self._peers = {name: address for name, address in self._peers.items() if name in known}
        for name, address in addresses.items():
            if not Address.is_one(address):
                self._post.endpoint.refused["malformed"] += 1
            elif name != self._name:
                self._peers[name] = address
        self._meeting.meet(self._peers)

    def _keep_answers(self, names: Iterable[str]) -> None:
        """On every network, accept from controllers only the replies to connections made here."""
        for each in names:
            for way in self._ways.each:
                way.keep_answers_of(each)

    def _learn(self, run: str, description: str) -> None:
        """Learn the description of a run, if one of its buckets can be created and updated."""
        try:
            found = Description.of(description)
            if found.run != run:
                raise ValueError(f"it is one of {found.run!r:.80}")
            found.rehearse()
            found.contents(found.buckets[0])
        except Exception as error:  # a client's malformed description must not harm other runs
            self._post.endpoint.refused["malformed"] += 1
            self._tell_malformed(run, f"{type(error).__name__}: {error}")
            return
        self._runs[run] = found
        if self._disk is not None:
            self._disk.describe(run, description)

    def _let_go(self) -> None:
        """Forget runs without data here: they are described again if they return."""
        for run in self._runs.keys() - {*self._machine.runs}:
            del self._runs[run]
            self._clients.forget(run)
            if self._disk is not None:
                self._disk.describe(run, "")

    def _tell_malformed(self, run: str, why: str) -> None:
        """Report a run that gets no replicas here; it is described again and again."""
        now = time.monotonic()
        if self._malformed is None or self._malformed[0] != run or now - self._malformed[1] > _SAY_SECONDS:
            self._malformed = run, now
            sentence = f"{self._name} cannot have copies of {run!r:.80}: malformed description ({why:.200})"
            self._post.send(COORDINATOR, Happened("malformed", self._name, f"{sentence}; remove that run"))

    def _is_known(self, bucket: str) -> bool:
        """True if the bucket belongs to a described run."""
        return run_of(bucket) in self._runs and bucket in self._runs[run_of(bucket)].has

    def _do(self, sender: str, message: ToKeeper) -> None:
        self._work.begin()
        if isinstance(message, OfBucket):
            self._serve(sender, message)
        else:
            self._deliver(self._machine.receive(sender, message, time.monotonic()))
        self._heard += 1
        self._is_due = self._machine.is_busy

    def _serve(self, sender: str, message: OfBucket) -> None:
        """Process a client's message."""
        if message.bucket in self._spoken:
            self._flush()  # before numbers change that are waiting to be sent
        said = message.message
        if isinstance(said, PullNewer) and self._post.endpoint.waiting_bytes(sender) > _UNREAD_BYTES:
            return  # it has not read its earlier pulls, and asks again
        if run_of(message.bucket) in self._runs:
            sender = self._clients.name(sender, run_of(message.bucket))
        self._deliver(self._machine.receive(sender, message, time.monotonic()))
        if isinstance(said, Update):
            self._work.took(sender, said)

    def _go_on(self) -> None:
        """Send replies and apply waiting updates: no message is left, or many were processed."""
        self._flush()
        if self._is_due:
            self._is_due = False
            self._work.begin()
            self._deliver(self._machine.drain(time.monotonic()))
            self._flush()
        self._work.end()

    def _flush(self) -> None:
        sends, self._sends, self._heard = self._sends, [], 0
        self._spoken.clear()
        self._post.deliver(sends)

    def _tick(self, now: float) -> None:
        if now - self._ticked < _TICK_SECONDS:
            return
        self._ticked = now
        self._calling.meet({**self._controllers, COORDINATOR: self._bond.to_call})
        self._meeting.meet(self._peers)
        for sentence in self._bond.tick(self._ways.each, now):
            self._post.send(COORDINATOR, Happened("token", self._name, f"{self._name}: {sentence}"))
        self._machine.address = self._ways.updates.address
        self._machine.peer_address = self._ways.replication.address
        self._deliver(self._machine.tick(now))
        self._is_due = self._is_due or self._machine.is_busy
        self._tell_short()
        if self._saving is not None:
            self._saving.tick(now)

    # --- the disk ---

    def _unsaved(self, run: str = "") -> Unsaved | None:
        """Return the unsaved changes, if there is a disk."""
        return None if self._saving is None else self._saving.unsaved(run, time.monotonic())

    def saved(self, number: int) -> None:
        """Record that a write is durable."""
        self._machine.saved(number)

    def damaged(self, bucket: str) -> None:
        """Record that the disk has lost a bucket."""
        if not self._machine.damaged(bucket) and self._disk is not None:
            self._disk.forget(bucket)

    def trouble(self, sentence: str) -> None:
        """Report something about the disk."""
        self._post.send(COORDINATOR, Happened("disk", self._name, sentence))

    def _deliver(self, sends: Sequence[Send]) -> None:
        """Queue messages; those for the controllers go to all of them, so any next leader knows the live
        servers."""
        for each in sends:
            message = each.message
            if isinstance(message, OfBucket | Prepare):
                self._spoken.add(message.bucket)
            if isinstance(message, OfBucket | Elsewhere):
                peer = self._clients.peer(each.to, run_of(message.bucket))
                self._sends.append(each if peer == each.to else Send(peer, message))
            elif each.to == CONTROLLERS:
                message = replace(message, key=self._key) if isinstance(message, Here) else message
                self._sends += [Send(name, message) for name in self._controllers]
            else:
                self._sends.append(each)

    def _contents(self, bucket: str) -> Any:
        return self._runs[run_of(bucket)].contents(bucket)

    def _counts(self, run: str) -> Any:
        own = [each for name, each in self._machine.copies.items() if run in ("", run_of(name))]
        led = [each for each in own if each.role is Role.PRIMARY]
        lag = max((behind for each in led for behind in each.lag.values()), default=0)
        counts = self._work.counts(
            self._name, [each.contents.updates for each in led], self._post.endpoint.refused
        )
        short = self._machine.short(lambda name: run in ("", run_of(name)))
        return replace(
            counts,
            short=(*short, self._machine.copying.least),
            unsaved=self._unsaved(run),
            restored=tuple(shard for each in led for shard in each.restored),
            parts=Parts(len(led), len(own), max((each.group.term for each in own), default=0), lag),
        )

    def _tell_short(self) -> None:
        """Report when updates wait for members, and when they no longer do."""
        short = self._machine.short()
        if short != self._short:
            self._short = short
            sentence = short_in_words(*short, self._machine.copying.least) or "no bucket waits for copies"
            self._post.send(COORDINATOR, Happened("short", self._name, f"{self._name}: {sentence}"))


def _bucket(message: Assign | Fence | FindSaved) -> str:
    return message.group.bucket if isinstance(message, Assign) else message.bucket
