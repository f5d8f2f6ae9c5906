"""Recorded traffic of a run's servers, as the pushes and pulls of each replica in order.

Knows: the files of `paramserver.runtime.traffic_log`, and their errors. Does not know: replay.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard

from cotswold.errors import UserError
from cotswold.optim.server_rules import Adagrad, AddUpdate, Momentum, Rule, Sgd
from cotswold.paramserver.runtime.traffic_log import FOLDER, VERSION
from cotswold.wire import Shard

_RULES: Mapping[str, type[Rule]] = {each.name: each for each in (AddUpdate, Sgd, Momentum, Adagrad)}
_PUSH, _PULL = "push", "pull"


@dataclass(frozen=True)
class RecordedMessage:
    """A push, or a pull of newer shards."""

    seconds: float
    """Seconds since the start of the recording."""
    is_push: bool
    shards: tuple[int, ...]
    kind: str = ""
    samples: int = 0
    examples: tuple[int, ...] = ()
    """Examples of each shard that came as factors; 0 for whole shards."""


@dataclass(frozen=True)
class Recorded:
    """Traffic of a run, from all its servers together."""

    dtype: str
    rule: Rule
    columns: Mapping[str, int]
    shards: tuple[Shard, ...]
    sessions: tuple[tuple[RecordedMessage, ...], ...]
    """Events of each session of a replica."""
    servers: int = field(default=1)
    """Number of servers that it was recorded on."""

    @property
    def pushes(self) -> int:
        """Number of pushes of all sessions."""
        return sum(each.is_push for session in self.sessions for each in session)

    @property
    def seconds(self) -> float:
        """Seconds from the first event to the last."""
        return max(each.seconds for session in self.sessions for each in session)


def read(path: Path) -> Recorded:
    """Read recorded traffic from a file, a folder of such files, or the directory of a run; raise
    UserError."""
    folder = path / FOLDER if (path / FOLDER).is_dir() else path
    files = [folder] if folder.is_file() else sorted(folder.glob("*.jsonl"))
    if not files:
        raise UserError(
            f"{path} has no recorded traffic; train with training.record_traffic = true, and name the run"
        )
    heads, lines = [], list[Any]()
    for file in files:
        head, rest = _lines(file)
        heads.append(head)
        lines += [(line, tuple(one[0] for one in head["shards"])) for line in rest]
    first = heads[0]
    shards = tuple(
        Shard(number, "", start, stop, tensor, block)
        for head in heads
        for number, tensor, block, start, stop in head["shards"]
    )
    rule = dict(first["rule"])
    kind = _RULES.get(rule.pop("name"))
    if kind is None or any(head["dtype"] != first["dtype"] for head in heads):
        raise UserError(f"{path} does not hold the traffic of one run; give the directory of one run")
    sessions = _sessions(lines)
    if not any(each.is_push for session in sessions for each in session):
        raise UserError(f"{path} contains no push; record a run that trains for some seconds")
    columns = {name: count for head in heads for name, count in head["columns"].items()}
    ordered = tuple(sorted(shards, key=lambda one: one.number))
    return Recorded(first["dtype"], kind(**rule), columns, ordered, sessions, len(files))


def _lines(file: Path) -> tuple[Any, list[Any]]:
    """The head and the further lines; a truncated last line is skipped."""
    texts = file.read_text(encoding="utf-8", errors="replace").splitlines()
    found = []
    for place, text in enumerate(texts):
        try:
            found.append(json.loads(text))
        except ValueError as error:
            if place < len(texts) - 1 or not place:
                raise UserError(
                    f"{file}: line {place + 1} is not JSON; it was not written by a server"
                ) from error
    if not found or not _is_head(found[0]):
        raise UserError(f"{file} is not recorded traffic of this version; record it again")
    wrong = next((place for place, line in enumerate(found[1:], 2) if not _is_line(line)), None)
    if wrong is not None:
        raise UserError(f"{file}: line {wrong} is neither a push nor a pull")
    return found[0], found[1:]


def _sessions(lines: Sequence[tuple[Any, tuple[int, ...]]]) -> tuple[tuple[RecordedMessage, ...], ...]:
    """Merge the same push at several servers, and the nth pull of a session, into one event."""
    found: dict[tuple[str, int], dict[tuple[str, int], RecordedMessage]] = {}
    begin = min((line[0] for line, _ in lines), default=0.0)
    for line, own in lines:
        seconds, name, session, verb, number = line[:5]
        is_push = verb == _PUSH
        which = line[7] if is_push else line[5]
        shards = own if which == 0 else tuple(which)
        events = found.setdefault((name, session), {})
        if is_push:
            examples = tuple(line[8]) or (0,) * len(shards)
            event = RecordedMessage(seconds - begin, True, shards, line[5], line[6], examples)
        else:  # pulls may share a number: those of one server differ
            number = _nth(events, shards)
            event = RecordedMessage(seconds - begin, False, shards)
        before = events.get((verb, number))
        if before is not None and set(before.shards) & set(shards):
            continue  # resent because it was not answered in time
        if before is not None:
            event = replace(
                before,
                shards=before.shards + shards,
                examples=before.examples + event.examples,
            )
        events[verb, number] = event
    return tuple(
        tuple(sorted(events.values(), key=lambda each: each.seconds)) for _, events in sorted(found.items())
    )


def _nth(events: Mapping[tuple[str, int], RecordedMessage], shards: tuple[int, ...]) -> int:
    """The number of a session's first pull that does not contain these shards."""
    number = 0
    while (before := events.get((_PULL, number))) is not None and set(before.shards) & set(shards):
        number += 1
    return number


def _is_head(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.get("traffic") == VERSION
        and value.get("dtype") in ("float32", "float64")
        and isinstance(value.get("rule"), dict)
        and isinstance(value["rule"].get("name"), str)
        and isinstance(value.get("columns"), dict)
        and all(_is_count(one) for one in value["columns"].values())
        and isinstance(value.get("shards"), list)
        and all(_is_shard(one) for one in value["shards"])
    )


def _is_shard(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 5:
        return False
    number, tensor, block, start, stop = value
    return isinstance(tensor, str) and _are_counts([number, block, start, stop]) and bool(start < stop)


def _is_line(value: Any) -> bool:
    if not isinstance(value, list) or len(value) < 6 or not isinstance(value[0], int | float):
        return False
    if not isinstance(value[1], str) or not _are_counts([value[2], value[4]]):
        return False
    if value[3] == _PULL:
        return len(value) == 6 and (value[5] == 0 or _are_counts(value[5]))
    return (
        value[3] == _PUSH
        and len(value) == 9
        and isinstance(value[5], str)
        and _is_count(value[6])
        and (value[7] == 0 or _are_counts(value[7]))
        and _are_counts(value[8])
    )


def _are_counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(_is_count(one) for one in value)


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
