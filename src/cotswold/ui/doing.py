"""Descriptions of the activity of replicas, servers and evaluators.

Knows: the fields of an event ``replicas``. Does not know: where the descriptions are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cotswold.replication.replica.settings import short_in_words
from cotswold.words import counted

SILENT_SECONDS = 2.0
"""Seconds without a message after which a process is called silent."""
_WAITS = {
    "pushing": "to apply its push",
    "pulling": "to send parameters",
    "idle": "to assign samples",
    "joining": "to admit it",
}
_ALONE = {"computing": "computes", "starting": "starts", "gone": "ends"}
_ALONE_THEN = {"computing": "computed", "starting": "started", "gone": "ended"}
"""The same for a silent process."""

Row = Mapping[str, object]


def rows(event: Row, name: str) -> list[Row]:
    """The mappings in a list-valued field of an event."""
    found = event.get(name)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, Sequence) else []


def figure(row: Row, name: str) -> float:
    """A numeric field; 0 if it is missing."""
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def figures(row: Row, name: str) -> tuple[float, float, float]:
    """A field with three numbers; zeros if they are missing."""
    found = row.get(name)
    some = found if isinstance(found, Sequence) else ()
    first, second, third = (*(each for each in some if isinstance(each, int | float)), 0, 0, 0)[:3]
    return first, second, third


def names(row: Row, name: str) -> list[str]:
    """A field with names."""
    found = row.get(name)
    return [str(each) for each in found] if isinstance(found, Sequence) and not isinstance(found, str) else []


def replica_does(row: Row) -> str:
    """The activity of a replica, and the processes that it waits for.

    >>> replica_does({"doing": "pushing", "waits_for": ["server-0", "server-1"]})
    'waits for server-0 and server-1 to apply its push'
    """
    doing = str(row.get("doing"))
    silent = figure(row, "silent_seconds")
    if silent > SILENT_SECONDS and doing != "starting":
        then = _said(doing, row, _ALONE_THEN, "waited")
        return f"is silent; in its last report it {then}"
    return _said(doing, row)


def _said(doing: str, row: Row, alone: Mapping[str, str] = _ALONE, waits: str = "waits") -> str:
    waited = [named(each) for each in names(row, "waits_for")]
    if doing in _WAITS and waited:
        return f"{waits} for {listed(waited)} {_WAITS[doing]}"
    return alone.get(doing, doing)


def named(name: str) -> str:
    """Readable name of a process or bucket; buckets are called RUN/NUMBER internally.

    >>> named("coordinator"), named("16e5810f153a94ed/0010"), named("server-1")
    ('the coordinator', 'bucket 10', 'server-1')
    """
    _, slash, number = name.rpartition("/")
    if slash and number.isdecimal():
        return f"bucket {int(number)}"
    return f"the {name}" if name == "coordinator" else name


def evaluator_does(row: Row) -> str:
    """The activity of an evaluator.

    >>> evaluator_does({"doing": "judging", "judges": 12000})
    'evaluates the parameters of sample 12,000'
    """
    silent = is_silent(row)
    waits, judges = ("waited", "evaluated") if silent else ("waits", "evaluates")
    what = {"starting": "starts", "idle": f"{waits} for parameters to evaluate"}.get(
        str(row.get("doing")), f"{judges} the parameters of sample {figure(row, 'judges'):,.0f}"
    )
    return f"is silent; in its last report it {what}" if silent else what


def since_seconds(row: Row) -> float:
    """Seconds since a replica's activity began."""
    return max(figure(row, "for_seconds"), figure(row, "silent_seconds"))


def since(row: Row) -> str:
    """Duration of a process's activity; for a silent process, the time of its last message.

    >>> since({"doing": "idle", "for_seconds": 0.3}), since({"doing": "idle", "silent_seconds": 7.8})
    ('for 0.3 s', '7.8 s ago')
    """
    if is_silent(row):
        return f"{seconds_in_words(figure(row, 'silent_seconds'))} ago"
    return f"for {seconds_in_words(since_seconds(row))}"


def is_silent(row: Row) -> bool:
    """True if a process has become silent after its first message."""
    return figure(row, "silent_seconds") > SILENT_SECONDS and row.get("doing") != "starting"


def has_disk(row: Row) -> bool:
    """True if a parameter server saves its state to a disk."""
    return isinstance(row.get("window_seconds"), int | float)


def is_copied(row: Row) -> bool:
    """True if a parameter server's buckets are, or may be, replicated."""
    return isinstance(row.get("leads"), int)


def unsaved(row: Row) -> str:
    """State of a parameter server that is not on its disk.

    >>> unsaved({"dirty_bytes": 3000000, "window_seconds": 0.72})
    '3.0 MB not on disk, since 0.7 s'
    """
    if not has_disk(row):
        return ""
    window = seconds_in_words(figure(row, "window_seconds"))
    dirty = figure(row, "dirty_bytes")
    return f"{bytes_in_words(dirty)} not on disk, since {window}" if dirty else "all on disk"


def server_does(row: Row) -> str:
    """The activity of a parameter server, and the processes that it waits for."""
    if is_silent(row):
        return "does not answer"
    short = short_in_words(*(int(each) for each in figures(row, "short")))
    if short:
        return short
    queued, waited = int(figure(row, "queued")), names(row, "waits_for")
    if waited and queued:
        return f"holds {counted(queued, 'update')} back for {listed(waited)}"
    if waited:
        return f"waits for {listed(waited)}"
    return f"applies {counted(queued, 'update')}" if queued else "waits for updates"


def listed(words: Sequence[str], most: int = 3) -> str:
    """Join names into a phrase.

    >>> listed(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    if len(words) > most:
        return f"{', '.join(words[:most])} and {len(words) - most} more"
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def seconds_in_words(seconds: float) -> str:
    """A duration in words.

    >>> seconds_in_words(0.31), seconds_in_words(75.2), seconds_in_words(7300)
    ('0.3 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def kinds_of(kind: object) -> str:
    """The plural of a kind of update.

    >>> kinds_of("gradient"), kinds_of("factors")
    ('gradients', 'factors')
    """
    return f"{kind}" if str(kind).endswith("s") else f"{kind}s"


def bytes_in_words(count: float) -> str:
    """A number of bytes with its unit.

    >>> bytes_in_words(800), bytes_in_words(2_500_000)
    ('800 B', '2.5 MB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"
