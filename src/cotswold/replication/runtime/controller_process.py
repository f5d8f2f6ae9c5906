"""A controller's process: its machine, the endpoint, and the state that controllers share.

Knows: the endpoint, where the state is, two threads. Does not know: who has copies, who leads
(`replication.controller`).

The state is asked in a thread of its own: a disk or a network may be slow, and leases must not wait for it.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast, get_args

from cotswold.errors import MachineError
from cotswold.processes.endpoint_settings import Reach, own_endpoint
from cotswold.processes.supervisor_link import Bond
from cotswold.processes.worker_thread import Working
from cotswold.replication.controller.controller import Controller
from cotswold.replication.controller.event_text import GATHERED
from cotswold.replication.controller.leader import FromServers
from cotswold.replication.controller.leader_election import Read, Wish
from cotswold.replication.controller.settings import Control
from cotswold.replication.metadata import Place, State
from cotswold.replication.run_description import name_in
from cotswold.replication.runtime.authorization import Entitled, digest_of
from cotswold.transport import Endpoint, Lost, Ready
from cotswold.transport.names import pair_key
from cotswold.transport.token_rotation import Rotating
from cotswold.wire import COORDINATOR, Assign, Here, Looked, RunSeen, Send
from cotswold.wire.lifecycle import Finish, Happened, Peers, Serving
from cotswold.wire.messenger import Calling, Letter, Post

_TICK_SECONDS = 0.02
_TROUBLE_SECONDS = 1.0
"""For which a state may not answer before that is said."""
_IMPOSTOR_SECONDS = 60.0
"""How often people are told of processes with the same name and a wrong key."""
_HEARD = get_args(FromServers)

Found = dict[str, str] | bool | ValueError | None
"""What came of a wish; an error where the state takes no such transaction."""
Answered = Callable[[Wish, Found], None]


def main(
    *,
    name: str,
    coordinator: str,
    state: Mapping[str, Any],
    reach: Mapping[str, Any],
    control: Mapping[str, Any],
    port: int | None = None,
    tokens: str | None = None,
) -> int:
    """The life of the controller called ``name``, whose coordinator is at the address ``coordinator``.

    ``state`` are the fields of `Place`, where its state is kept; ``reach`` are the fields of `Reach`,
    ``control`` those of `Control`; with ``port`` it is reached there by whoever knows no more than that. The
    token is in the environment. Raises MachineError where the coordinator ends first, and what the state
    raises."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the coordinator ends it, after whoever needs it
    found = Reach(**reach)
    if port is not None:
        found = replace(found, ports=(port, port), mode="curve")
    ring = Rotating.of_file(tokens)
    with own_endpoint(name, found, None if ring is None else ring.ring) as endpoint:
        endpoint.connect(COORDINATOR, coordinator)
        post = Post(endpoint)
        with StateThread(Place(**state)) as kept:
            post.send(COORDINATOR, Serving(name, endpoint.address))
            ControllerRole(name, post, kept, Control(**control), endpoint, Bond(coordinator, ring)).run()
    return 0


class StateThread:
    """A state that is asked in a thread of its own, one thing after the other."""

    def __init__(self, place: Place) -> None:
        self._working = Working()
        self._state: State | None = None
        self.trouble = ""
        """Why it could not be asked last; empty where it could."""
        self._working.do(partial(self._open, place))

    def __enter__(self) -> StateThread:
        return self

    def __exit__(self, *_: object) -> None:
        self._working.do(self._close)
        self._working.close()

    def fileno(self) -> int:
        """Can be read where `take` has something."""
        return self._working.fileno()

    def take(self) -> None:
        """Tell what came of what was asked; raises what the state raises where it is damaged."""
        self._working.take()

    def ask(self, wish: Wish, answered: Answered) -> None:
        """Ask; ``answered`` hears of it when it is taken."""
        self._working.do(partial(self._ask, wish, answered))

    def _open(self, place: Place) -> None:
        self._state = place.opened()

    def _close(self) -> None:
        if self._state is not None:
            self._state.close()

    def _ask(self, wish: Wish, answered: Answered) -> None:
        assert self._state is not None, "it was opened first"
        found: Found
        try:
            if isinstance(wish, Read):
                found = self._state.read(wish.prefix, wish.after, wish.most)
            else:
                found = self._state.transact(wish.compare, wish.put)
            trouble = ""
        except MachineError as error:  # it may be there again when it is asked next; until then nobody is led
            found, trouble = None, str(error)
        except ValueError as error:  # nothing of it was done
            if isinstance(wish, Read):
                raise
            found, trouble = error, ""
        self.trouble = trouble
        self._working.tell(partial(answered, wish, found))


class ControllerRole:
    """One controller's process."""

    def __init__(
        self,
        name: str,
        post: Post,
        state: StateThread,
        control: Control,
        endpoint: Endpoint,
        bond: Bond,
    ) -> None:
        self._name, self._post, self._state = name, post, state
        self._machine = Controller(name, control, time.monotonic(), secrets.token_hex(6))
        self._entitled = Entitled(time.monotonic(), lambda: self._machine.keys)
        self._ticked = 0.0
        self._bond, self._endpoint = bond, endpoint
        endpoint.keep(COORDINATOR)
        self._calling = Calling(lambda address: endpoint)
        self._troubled: float | None = None
        """Since when the state cannot be asked."""
        self._is_told = False
        """Whether that was said."""
        self._called: dict[str, str] = {}
        """What people call runs, of those that whoever looked last has seen."""
        self._addressed: dict[str, str] = {}
        """Where servers are reached by each other, as they said last."""
        self._vouched: dict[str, str] = {}
        """Keys of servers that must prove their names, here and to the servers of their buckets."""
        self._impostors: dict[str, float] = {}
        """When people were told that somebody else has the name of a server."""
        post.endpoint.watch(state.fileno())

    def run(self) -> None:
        """Control until the coordinator says that it is over; raises MachineError where that is lost."""
        while self._attend(self._post.receive(_TICK_SECONDS)):
            now = time.monotonic()
            self._tick(now)
            wish = self._machine.wish(now)
            if wish is not None:
                self._state.ask(wish, self._answered)

    def _tick(self, now: float) -> None:
        if now - self._ticked < _TICK_SECONDS:
            return
        self._ticked = now
        for sentence in self._bond.tick((self._endpoint,), now):
            self._post.send(COORDINATOR, Happened("token", self._name, f"{self._name}: {sentence}"))
        self._calling.meet({COORDINATOR: self._bond.to_call})
        self._deliver(self._machine.tick(now))
        for event in self._machine.take_events():
            self._post.send(COORDINATOR, Happened(event.kind, event.name, event.sentence))
        self._tell_trouble(now)
        self._forget_names(now)
        for event in self._machine.take_gathered(now):
            self._post.send(COORDINATOR, Happened(GATHERED, event.name, event.sentence))

    def _attend(self, event: object) -> bool:
        match event:
            case Letter(sender, Finish()) if sender == COORDINATOR:
                return False
            case Letter(sender, message) if isinstance(message, _HEARD):
                self._hear(sender, cast(FromServers, message), time.monotonic())
            case Ready():
                self._state.take()
            case Lost(peer, why):
                self._entitled.lost(peer)
                if peer == COORDINATOR and self._bond.lost(time.monotonic()):
                    raise self._bond.over(self._name, why)
            case _:
                pass
        return True

    def _hear(self, sender: str, message: FromServers, now: float) -> None:
        if reason := self._entitled.wrong(sender, message, now):
            self._post.endpoint.refused[reason] += 1
            if isinstance(message, Here) and sender == message.server and self._entitled.is_impostor(message):
                self._tell_impostor(sender, now)
            return
        if isinstance(message, Here) and message.key:
            message = replace(message, key=digest_of(message.key))  # the machine has it written down
        self._deliver(self._machine.receive(sender, message, now))
        if isinstance(message, Here) and message.server == sender:
            self._met(message)
            self._vouch(sender)

    def _vouch(self, server: str) -> None:
        """Require a proof of a server's name from now on: at this endpoint, and at the servers of its
        buckets. A server that has not proved its name to this endpoint yet is left as it is."""
        key = self._entitled.key_of(server)
        if not key or self._vouched.get(server) == key:
            return
        pair = pair_key(key, self._name)
        if not self._endpoint.has_proved(server, pair):
            return
        self._vouched[server] = key
        self._endpoint.vouch(server, pair)
        for each in self._machine.neighbours(server):
            self._post.send(each, Peers((), ((server, pair_key(key, each)),)))

    def _forget_names(self, now: float) -> None:
        """Some servers are known or heard no more: whoever has a name of theirs may come in, and is judged by
        what it says."""
        known, silent = self._machine.servers.of, self._entitled.is_silent
        for name in [each for each in self._vouched if each not in known or silent(each, now)]:
            del self._vouched[name]
            self._endpoint.vouch(name, "")

    def _tell_impostor(self, server: str, now: float) -> None:
        """People should know of a process with the name of a server and another key, now and then."""
        if now - self._impostors.get(server, float("-inf")) < _IMPOSTOR_SECONDS:
            return
        self._impostors = {name: at for name, at in self._impostors.items() if name in self._machine.keys}
        self._impostors[server] = now
        sentence = (
            f"a process calls itself {server} and does not have that server's key, so it is not heard; if "
            "its host was set back to an earlier state, start the host's 'cotswold cluster' again"
        )
        self._machine.note("stranger", server, sentence, now)

    def _tell_trouble(self, now: float) -> None:
        """Say, once, that the state cannot be asked, and why, and that it can again."""
        trouble = self._state.trouble
        if trouble and self._troubled is None:
            self._troubled = now
        if trouble and not self._is_told and now - (self._troubled or now) > _TROUBLE_SECONDS:
            self._is_told = True
            said = f"{self._name} cannot read or write its state, and leads nobody without: {trouble}"
            self._post.send(COORDINATOR, Happened("state", self._name, said))
        if not trouble and self._troubled is not None:
            said = f"{self._name} reads and writes its state again, after {now - self._troubled:.0f} s"
            if self._is_told:
                self._post.send(COORDINATOR, Happened("state", self._name, said))
            self._troubled, self._is_told = None, False

    def _met(self, here: Here) -> None:
        """A server that is reached elsewhere than before: the others are told."""
        address = here.peer_address or here.address
        if here.server not in self._addressed:
            known = self._machine.servers.of
            self._addressed = {name: each for name, each in self._addressed.items() if name in known}
        before, self._addressed[here.server] = self._addressed.get(here.server, address), address
        if before != address:
            for each in self._machine.servers.living:
                if each.name != here.server:
                    self._post.send(each.name, Peers(((here.server, address),)))

    def _answered(self, wish: Wish, found: Found) -> None:
        now, machine = time.monotonic(), self._machine
        if isinstance(found, ValueError):
            sentence = f"the state does not take what {self._name} wanted to put, which is forgotten: {found}"
            self._post.send(COORDINATOR, Happened("refused", self._name, sentence))
            found = False
        if not isinstance(wish, Read):
            self._deliver(machine.transacted(cast(bool | None, found), now))
        elif found is None:
            self._deliver(machine.unread())
        else:
            self._deliver(machine.read(cast(dict[str, str], found), now))

    def _deliver(self, sends: Sequence[Send]) -> None:
        """Whoever is told of a group is told first where the others of it are."""
        named: dict[str, set[str]] = {}
        for each in sends:
            if isinstance(each.message, Assign):
                named.setdefault(each.to, set()).update(each.message.group.everybody)
        for server, names in named.items():
            others = sorted(names)
            self._post.send(server, Peers(tuple(self._addresses(others)), self._pair_keys(others, server)))
        self._post.deliver(map(self._with_more, sends))

    def _with_more(self, send: Send) -> Send:
        """The same; whoever looks hears also of this process, of what the machine did not hear, and what
        people call each run."""
        if not isinstance(send.message, Looked):
            return send
        refused = tuple(sorted(self._post.endpoint.refused.items()))
        runs = self._with_names(send.message.runs)
        return replace(send, message=replace(send.message, refused=refused, process=os.getpid(), runs=runs))

    def _with_names(self, runs: Sequence[RunSeen]) -> tuple[RunSeen, ...]:
        described, known = self._machine.descriptions, self._called
        self._called = {
            each.run: known[each.run] if each.run in known else name_in(described[each.run])
            for each in runs
            if each.run in described
        }
        return tuple(replace(each, name=self._called.get(each.run, "")) for each in runs)

    def _pair_keys(self, names: Sequence[str], to: str) -> tuple[tuple[str, str], ...]:
        """By which these servers prove their names to another."""
        keys = {name: self._vouched[name] for name in names if name != to and name in self._vouched}
        return tuple((name, pair_key(key, to)) for name, key in keys.items())

    def _addresses(self, names: Sequence[str]) -> list[tuple[str, str]]:
        known = self._machine.servers.of
        return [
            (name, known[name].peer_address) for name in names if name in known and known[name].peer_address
        ]
