"""Recorded traffic replayed against real servers: updates per second by number of servers.

Knows: forms of a push, shares of servers, the counts. Does not know: files, sockets.

One process per session repeats a replica's session in order, each message answered before the next: at the
recorded times, or as fast as servers allow. The count is of weight updates: k·M·N for factors of k examples
of an M x N matrix, M·N for a delta or gradient (figure 9 of Chilimbi et al. 2014 does not define its count).
With more servers than in `MEASURED`, one is measured with its share of the shards, and the others are
assumed to be equal: such a row says *simulated*.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cotswold.bench.case import Case
from cotswold.bench.effort import Effort
from cotswold.bench.measure import Spread, rounded
from cotswold.bench.row import COTSWOLD, Comparison, Row, RowKey
from cotswold.bench.server.processes import REQUESTED_RATE, ClientIdentity, call_of, name_of, run_processes
from cotswold.bench.server.recorded import Recorded, RecordedMessage, read
from cotswold.bench.server.unreplicated_servers import Model, Transport, UnreplicatedServers, forked
from cotswold.host import keep_freed_memory
from cotswold.optim.server_rules import AddUpdate
from cotswold.shards.runtime.layout import assign_to_servers
from cotswold.wire import Shard

Form = Literal["as recorded", "whole", "factors"]
FORMS: tuple[Form, ...] = ("whole", "factors")
MEASURED = (1, 2)
"""Numbers of servers that all run here."""
SHARES = (4, 8, 16)
"""Numbers of servers of which one runs here."""
TRANSPORT: Transport = "shared memory"
RECORDED_SPEED, FULL_SPEED = 1.0, 0.0
PUSHES = "pushes/s"
_REPLAY_FUNCTION = "cotswold.bench.server.replay:replay_session"


@dataclass(frozen=True)
class Replay:
    """Traffic, in a form, on ``servers`` servers, at the recorded or at full speed."""

    recorded: Recorded
    form: Form
    servers: int
    speed: float = FULL_SPEED
    seconds: float = 3.0

    @property
    def is_simulated(self) -> bool:
        """True if one server stands for all."""
        return self.servers not in MEASURED

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The shards that are served here, with server names as in `UnreplicatedServers`."""
        names = [f"server-{number}" for number in range(self.servers)]
        every = assign_to_servers(self.recorded.shards, names)
        if not self.is_simulated:
            return every
        by_name = {name: [one for one in every if one.server == name] for name in names}
        most = max(by_name.values(), key=lambda own: sum(one.stop - one.start for one in own))
        return assign_to_servers(most, names[:1])


def cases(path: Path, seconds: float) -> list[Case[Any]]:
    """The recorded speed on one server; then full speed, in every form on every number of servers.

    Raises UserError if there is no recorded traffic.
    """
    recorded = read(path)
    replays = [
        Replay(recorded, "as recorded", 1, RECORDED_SPEED, seconds),
        *(
            Replay(recorded, form, servers, FULL_SPEED, seconds)
            for form in FORMS
            for servers in (*MEASURED, *SHARES)
        ),
    ]
    return [
        Case("trace", path.name, partial(measured, path.name), one, is_measured_once=True) for one in replays
    ]


def measured(name: str, what: Replay, effort: Effort) -> list[Row]:
    """One row: weight updates per second."""
    recorded, shards = what.recorded, what.shards
    model = Model(
        tuple((tensor, 1, columns) for tensor, columns in recorded.columns.items()),
        1 << 20,
        recorded.rule,
        recorded.dtype,
        cut=shards,
    )
    sessions = [name_of(number) for number in range(len(recorded.sessions))]
    with (
        tempfile.TemporaryDirectory(prefix="cotswold-") as folder,
        UnreplicatedServers(forked(), model, sessions, TRANSPORT) as served,
    ):
        calls = []
        for number, events in enumerate(recorded.sessions):
            file = Path(folder) / f"{number}.events"
            plan = [_plan_event(each, what, shards) for each in events]
            file.write_text(json.dumps([each for each in plan if each is not None]))
            more = {
                "events": str(file),
                "columns": dict(recorded.columns),
                "dtype": recorded.dtype,
                "kind": "delta" if isinstance(recorded.rule, AddUpdate) else "gradient",
                "speed": what.speed,
                "seconds": what.seconds,
            }
            calls.append(call_of(served, number, _REPLAY_FUNCTION, Path(folder), more))
        before = served.counts()
        said = run_processes(forked(), calls, Path(folder), what.seconds)
        after = served.counts()
    return [_row(name, what, said, before, after)]


def _row(
    name: str, what: Replay, said: Sequence[Mapping[str, Any]], before: Sequence[Any], after: Sequence[Any]
) -> Row:
    taken = max(one["seconds"] for one in said)
    pushes, weights, sent = (sum(one[key] for one in said) for key in ("pushes", "weights", "sent_bytes"))
    share = 1.0
    if what.is_simulated:
        everything = sum(one.stop - one.start for one in what.recorded.shards)
        share = everything / sum(one.stop - one.start for one in what.shards)
    facts: dict[str, object] = {
        "servers": what.servers,
        "is_simulated": what.is_simulated,
        "form": what.form,
        "speed": "recorded" if what.speed else "as fast as can be",
        "sessions": sum(any(each.is_push for each in own) for own in what.recorded.sessions),
        "pushes_per_second": rounded(pushes / taken),
        "sent_bytes_a_push": rounded(sent / max(1, pushes)),
        "server_cpu_seconds_a_push": [
            rounded((b.cpu_seconds - a.cpu_seconds) / max(1, pushes))
            for a, b in zip(before, after, strict=True)
        ],
        "applying_seconds_a_push": [
            rounded((b.applying_seconds - a.applying_seconds) / max(1, pushes))
            for a, b in zip(before, after, strict=True)
        ],
        "late_seconds": rounded(max(one["late_seconds"] for one in said)),
    }
    servers = "1 server" if what.servers == 1 else f"{what.servers} servers"
    operation = f"{what.form}, {servers}" + (", simulated from one" if what.is_simulated else "")
    figures = {COTSWOLD: Spread.from_samples([share * weights / taken / 1e9])}
    verdicts = []
    asked = sum(one["asked"] for one in said) / taken / 1e9
    if asked:
        figures[REQUESTED_RATE] = Spread.from_samples([asked])
        verdicts = [Comparison(REQUESTED_RATE, Spread.from_samples([share * weights / taken / 1e9 / asked]))]
    else:
        verdicts = [Comparison(PUSHES, Spread.from_samples([pushes / taken]))]
    samples = {by: [one.median] for by, one in figures.items()}
    return Row(
        RowKey("trace", name, operation), "G updates/s", figures, samples, "rates", verdicts, facts=facts
    )


def _plan_event(event: RecordedMessage, what: Replay, shards: Sequence[Shard]) -> list[object] | None:
    """An event for the process: seconds, its shards, and examples of each pushed shard (None for a pull).
    None if none of its shards is served here."""
    here = {one.number: one for one in shards}
    if not event.is_push:
        own = [number for number in event.shards if number in here]
        return [event.seconds, own, None] if own else None
    recorded = dict(zip(event.shards, event.examples, strict=True))
    own = [number for number in event.shards if number in here]
    if not own:
        return None
    if what.form == "as recorded":
        examples = [recorded[number] for number in own]
    elif what.form == "whole" or isinstance(what.recorded.rule, AddUpdate):
        examples = [0] * len(own)
    else:
        examples = [_examples(what.recorded, here[number], event.samples) for number in own]
    return [event.seconds, own, examples]


def _examples(recorded: Recorded, shard: Shard, samples: int) -> int:
    """Number of examples that a shard comes as; 0 if its numbers are fewer than those of the factors."""
    columns = recorded.columns[shard.tensor]
    numbers = sum(one.stop - one.start for one in recorded.shards if one.tensor == shard.tensor)
    return samples if samples * (numbers // columns + columns) < numbers else 0


def replay_session(
    *,
    peer: Mapping[str, Any],
    events: str,
    columns: Mapping[str, int],
    dtype: str,
    kind: str,
    speed: float,
    seconds: float,
) -> int:
    """Replay a session for at most ``seconds``; at full speed repeatedly."""
    keep_freed_memory()
    me = ClientIdentity(**peer)
    client = me.client(kind)
    here = {one[0]: Shard(*one) for one in me.shards}
    plan = json.loads(Path(events).read_text())
    numbers = np.full(
        max([one.stop - one.start for one in here.values()] + _factors(plan, here, columns)), 1e-3
    )
    numbers = numbers.astype(dtype)
    me.await_others()
    begun, cpu = time.perf_counter(), time.process_time()
    pushes = weights = asked = 0
    late = 0.0
    place = 0
    while plan and time.perf_counter() - begun < seconds:
        if place == len(plan):
            if speed:
                break
            place = 0
        due, own, examples = plan[place]
        place += 1
        if speed:
            if due / speed > seconds:
                break
            time.sleep(max(0.0, begun + due / speed - time.perf_counter()))
            late = max(late, time.perf_counter() - begun - due / speed)
        if examples is None:
            client.pull(only=own)
            continue
        client.push_form(own, examples, columns, numbers)
        pushes += 1
        weights += sum(
            max(1, count) * (here[number].stop - here[number].start)
            for number, count in zip(own, examples, strict=True)
        )
    if speed:
        asked = sum(
            max(1, count) * (here[number].stop - here[number].start)
            for due, own, examples in plan
            if examples is not None and due / speed <= seconds
            for number, count in zip(own, examples, strict=True)
        )
    traffic = client.post.endpoint.traffic
    me.write_report(
        {
            "pushes": pushes,
            "weights": weights,
            "asked": asked,
            "seconds": time.perf_counter() - begun,
            "cpu_seconds": time.process_time() - cpu,
            "sent_bytes": traffic.sent_bytes + traffic.sent_shared_bytes,
            "late_seconds": late,
        },
    )
    client.close()
    return 0


def _factors(plan: Sequence[Any], here: Mapping[int, Shard], columns: Mapping[str, int]) -> list[int]:
    """Lengths of the buffers that the pushes need."""
    return [
        count
        * max(
            (here[number].stop - here[number].start) // columns[here[number].tensor],
            columns[here[number].tensor],
        )
        for _, own, examples in plan
        if examples is not None
        for number, count in zip(own, examples, strict=True)
    ]
