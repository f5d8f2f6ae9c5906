"""Diagnosis of waiting among replicas, servers and the coordinator, in sentences.

Knows: the fields of the event ``replicas``. Does not know: its origin, runs.
"""

from __future__ import annotations

from collections.abc import Mapping

from cotswold.phrases import counted
from cotswold.ui import activity
from cotswold.ui.activity import Row
from cotswold.ui.format import bytes_in_words, listed, seconds_in_words

COORDINATOR = "coordinator"
_PROCESSES = ("replicas", "servers", "evaluators")
"""Fields with one row per process."""
_LONG_SECONDS = 5.0
"""Minimum seconds of waiting before a process is reported."""
_REFUSED = {"finite": "not finite", "stale": "too stale"}
"""Descriptions of reasons for rejected updates; other reasons are shown unchanged."""


def table(now: Mapping[str, object], is_here: bool) -> list[str]:
    """Return a line per process: activity, duration and figures.

    ``is_here`` is True if the processes are on this machine.
    """
    found = []
    for row in activity.rows(now, "replicas"):
        most = f"{activity.figure(row, 'staleness_max'):.0f}"
        figures = (
            f"{activity.figure(row, 'samples_in_flight'):,.0f} samples in flight, "
            f"{activity.figure(row, 'samples_per_second'):,.0f} samples/s, "
            f"staleness {activity.figure(row, 'staleness'):.1f} (at most {most})"
        )
        does, duration = activity.replica_does(row), activity.describe_duration(row)
        found.append(f"{_readable_name(row, is_here)} {does}, {duration}; {figures}")
    for row in activity.rows(now, "servers"):
        silent = seconds_in_words(activity.figure(row, "silent_seconds"))
        since = f", for {silent}" if activity.is_silent(row) else ""
        figures = (
            f"{activity.figure(row, 'updates_per_second'):,.0f} updates/s, "
            f"{bytes_in_words(activity.figure(row, 'queued_bytes'))} in its queue, "
            f"{counted(int(activity.figure(row, 'shards')), 'shard')}{_describe_rejections(row)}"
        )
        figures += f", {said}" if (said := activity.describe_unsaved(row)) else ""
        found.append(f"{_readable_name(row, is_here)} {activity.server_does(row)}{since}; {figures}")
    for row in activity.rows(now, "evaluators"):
        does, duration = activity.describe_evaluator(row), activity.describe_duration(row)
        found.append(f"{_readable_name(row, is_here)} {does}, {duration}")
    return found


def diagnose(now: Mapping[str, object], is_here: bool) -> list[str]:
    """Return the processes at the root of every long wait, or a statement that nothing is stuck."""
    rows = {str(row.get("name")): row for kind in _PROCESSES for row in activity.rows(now, kind)}
    waits = _waits(rows)
    long = [
        name for name, row in rows.items() if waits[name] and activity.since_seconds(row) >= _LONG_SECONDS
    ]
    silent = [name for name, row in rows.items() if activity.is_silent(row)]
    found = [f"{name} {_describe_silence(rows[name], is_here)}" for name in silent]
    if is_here:
        found += [
            line
            for name, row in rows.items()
            if name not in silent
            for line in _describe_stopped_children(row)
        ]
    for root in sorted({each for name in long for each in _roots_of(name, waits)} - set(silent)):
        behind = [name for name in long if root in _roots_of(name, waits)]
        said = (
            activity.replica_does(rows[root]) if "activity" in rows.get(root, {}) else "has not answered yet"
        )
        found.append(f"{listed(behind)} {_wait(behind)} for {root} in the end, which {said}")
    for root in silent:
        behind = [
            name for name, whom in waits.items() if name != root and root in _roots_of(name, waits) and whom
        ]
        if behind:
            found.append(f"{listed(behind)} {_wait(behind)} for {root}")
    return found or ["no process has waited for long"]


def _waits(rows: Mapping[str, Row]) -> dict[str, list[str]]:
    """Return the processes for which each process waits.

    A silent process waits for none, because its last message is outdated. At the end of an epoch, a replica
    without samples waits for those with pending samples, or for silent servers that have not confirmed
    updates.
    """
    silent = [name for name, row in rows.items() if activity.is_silent(row)]
    replicas = {name: row for name, row in rows.items() if "samples_in_flight" in row}
    idle = [name for name, row in replicas.items() if row.get("activity") == "idle" and name not in silent]
    in_flight = [name for name, row in rows.items() if activity.figure(row, "samples_in_flight")]
    ends = [name for name in in_flight if name not in idle]
    if in_flight and not ends:
        ends = [name for name in silent if "activity" not in rows[name]]
    waits = {name: activity.names(row, "waits_for") for name, row in rows.items()}
    return {**waits, **dict.fromkeys(idle, ends), **{name: [] for name in silent}}


def _wait(names: list[str]) -> str:
    return "waits" if len(names) == 1 else "wait"


def _roots_of(name: str, waits: Mapping[str, list[str]]) -> set[str]:
    """Return the roots for which a process waits: those that wait for none, or all processes of a cycle."""
    seen: set[str] = set()
    ahead = [name]
    ends = set()
    while ahead:
        each = ahead.pop()
        if each in seen:
            continue
        seen.add(each)
        if not waits.get(each):
            ends.add(each)
        ahead += waits.get(each, [])
    return (ends or seen) - {name}


def _describe_silence(row: Row, is_here: bool) -> str:
    """Describe why a process is silent, as far as the system knows."""
    since = seconds_in_words(activity.figure(row, "silent_seconds"))
    process = int(activity.figure(row, "pid"))
    if is_here and process:
        from cotswold.host.process_info import is_stopped
        from cotswold.host.stack_dump import describe_state

        if is_stopped(process):
            return f"is stopped, and sent no message for {since}; kill -CONT {process} continues it"
        if state := describe_state(process):
            return f"{state}, and sent no message for {since}"
    return f"sent no message for {since}; --stacks shows its stack, if it is on this machine"


def _describe_stopped_children(row: Row) -> list[str]:
    """Describe stopped children of a process that has been in the same activity for long."""
    process = int(activity.figure(row, "pid"))
    if not process or "activity" not in row or activity.since_seconds(row) < _LONG_SECONDS:
        return []
    from cotswold.host.process_info import is_stopped, process_tree

    return [
        f"{row.get('name')} has a child process {each}, which is stopped; kill -CONT {each} continues it"
        for each in process_tree(process)[1:]
        if is_stopped(each)
    ]


def _readable_name(row: Row, is_here: bool) -> str:
    machine = "" if is_here else f" on {row.get('machine')}"
    process = int(activity.figure(row, "pid"))
    return f"{row.get('name')} (process {process}{machine})" if process else f"{row.get('name')}"


def _describe_rejections(row: Row) -> str:
    found = row.get("refused_updates")
    pairs = found if isinstance(found, list | tuple) else []
    told = [(each[1], _REFUSED.get(each[0], each[0])) for each in pairs if isinstance(each, list | tuple)]
    return "".join(f", {count} refused: {why}" for count, why in told)
