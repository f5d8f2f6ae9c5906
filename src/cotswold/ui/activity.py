"""Descriptions of the activity of replicas and parameter servers.

Knows: the fields of the event ``replicas``. Does not know: displays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cotswold.phrases import counted, short_in_words
from cotswold.ui.format import bytes_in_words, listed, seconds_in_words

SILENT_SECONDS = 2.0
"""Seconds without a message after which a process is called silent."""
_WAITS = {
    "pushing": "to apply its push",
    "pulling": "to send parameters",
    "idle": "to hand out samples",
    "joining": "to admit it",
}
_ALONE = {"computing": "computes", "starting": "starts", "exiting": "ends"}
_ALONE_THEN = {"computing": "computed", "starting": "started", "exiting": "ended"}
"""Past tense, for silent processes."""

Row = Mapping[str, object]


def rows(event: Row, name: str) -> list[Row]:
    """Return a list of mappings in the field ``name`` of an event; other items are dropped."""
    found = event.get(name)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, Sequence) else []


def figure(row: Row, name: str) -> float:
    """Return a number in the field ``name``; 0 if missing."""
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def figures(row: Row, name: str) -> tuple[float, float, float]:
    """Return three numbers in the field ``name``; zeros if missing."""
    found = row.get(name)
    some = found if isinstance(found, Sequence) else ()
    first, second, third = (*(each for each in some if isinstance(each, int | float)), 0, 0, 0)[:3]
    return first, second, third


def names(row: Row, name: str) -> list[str]:
    """Return the names in the field ``name``."""
    found = row.get(name)
    return [str(each) for each in found] if isinstance(found, Sequence) and not isinstance(found, str) else []


def replica_does(row: Row) -> str:
    """Describe a replica's activity, and for which processes it waits.

    >>> replica_does({"activity": "pushing", "waits_for": ["server-0", "server-1"]})
    'waits for server-0 and server-1 to apply its push'
    """
    activity = str(row.get("activity"))
    silent = figure(row, "silent_seconds")
    if silent > SILENT_SECONDS and activity != "starting":
        then = _describe_activity(activity, row, _ALONE_THEN, "waited")
        return f"is silent; at its last message it {then}"
    return _describe_activity(activity, row)


def _describe_activity(
    activity: str, row: Row, alone: Mapping[str, str] = _ALONE, waits: str = "waits"
) -> str:
    waited = [readable_name(each) for each in names(row, "waits_for")]
    if activity in _WAITS and waited:
        return f"{waits} for {listed(waited)} {_WAITS[activity]}"
    return alone.get(activity, activity)


def readable_name(name: str) -> str:
    """Return a readable name for a process or bucket; replicated buckets are named RUN/NUMBER.

    >>> readable_name("coordinator"), readable_name("16e5810f153a94ed/0010"), readable_name("server-1")
    ('the coordinator', 'bucket 10', 'server-1')
    """
    _, slash, number = name.rpartition("/")
    if slash and number.isdecimal():
        return f"bucket {int(number)}"
    return f"the {name}" if name == "coordinator" else name


def describe_evaluator(row: Row) -> str:
    """Describe an evaluator's activity.

    >>> describe_evaluator({"activity": "evaluating", "evaluated_samples": 12000})
    'evaluates the parameters of sample 12,000'
    """
    silent = is_silent(row)
    waits, evaluates = ("waited", "evaluated") if silent else ("waits", "evaluates")
    what = {"starting": "starts", "idle": f"{waits} for parameters to evaluate"}.get(
        str(row.get("activity")),
        f"{evaluates} the parameters of sample {figure(row, 'evaluated_samples'):,.0f}",
    )
    return f"is silent; at its last message it {what}" if silent else what


def since_seconds(row: Row) -> float:
    """Return the seconds for which a replica's activity has lasted."""
    return max(figure(row, "activity_seconds"), figure(row, "silent_seconds"))


def describe_duration(row: Row) -> str:
    """Return the duration of a process's activity, or the time since a silent process's last message.

    >>> describe_duration({"activity": "idle", "activity_seconds": 0.3})
    'for 0.3 s'
    >>> describe_duration({"activity": "idle", "silent_seconds": 7.8})
    '7.8 s ago'
    """
    if is_silent(row):
        return f"{seconds_in_words(figure(row, 'silent_seconds'))} ago"
    return f"for {seconds_in_words(since_seconds(row))}"


def is_silent(row: Row) -> bool:
    """True if a process has stopped sending messages."""
    return figure(row, "silent_seconds") > SILENT_SECONDS and row.get("activity") != "starting"


def has_disk(row: Row) -> bool:
    """True if a parameter server saves its state to a disk."""
    return isinstance(row.get("dirty_seconds"), int | float)


def is_copied(row: Row) -> bool:
    """True if a parameter server's state is replicated, or may be."""
    return isinstance(row.get("primary_buckets"), int)


def describe_unsaved(row: Row) -> str:
    """Describe the state of a parameter server that is not on its disk.

    >>> describe_unsaved({"dirty_bytes": 3000000, "dirty_seconds": 0.72})
    '3.0 MB not on disk, since 0.7 s'
    """
    if not has_disk(row):
        return ""
    window = seconds_in_words(figure(row, "dirty_seconds"))
    dirty = figure(row, "dirty_bytes")
    return f"{bytes_in_words(dirty)} not on disk, since {window}" if dirty else "all on disk"


def server_does(row: Row) -> str:
    """Describe a parameter server's activity, and for which processes it waits."""
    if is_silent(row):
        return "does not answer"
    short = short_in_words(*(int(each) for each in figures(row, "under_replicated")))
    if short:
        return short
    queued, waited = int(figure(row, "queued_updates")), names(row, "waits_for")
    if waited and queued:
        return f"keeps {counted(queued, 'update')} back for {listed(waited)}"
    if waited:
        return f"waits for {listed(waited)}"
    return f"applies {counted(queued, 'update')}" if queued else "waits for updates"
