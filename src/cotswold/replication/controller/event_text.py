"""Sentences about buckets for people: one per bucket, and one for many buckets with the same cause.

Knows: groups, words. Does not know: the reasons; callers pass them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cotswold.replication.controller.cluster_view import Reason
from cotswold.replication.controller.election import Election, ElectionReason
from cotswold.replication.replica.saved_bucket import disk_of, is_restored
from cotswold.wire import Group, Heartbeat
from cotswold.wire.names import display_name, display_name_without_run, run_of

GATHERED = "summary"
"""Kind of an event that repeats, in one sentence for many buckets, what was recorded of each."""
OF_BUCKETS = (
    *("elected", "handed_over", "rebalanced", "recovered", "unavailable"),
    *("caught_up", "replica_added", "replica_removed"),
)
"""Kinds of events of single buckets."""

_RUNS = 3
"""Maximum number of runs that a sentence names."""


@dataclass(frozen=True)
class BucketEvent:
    """A change of one bucket."""

    kind: str
    """One of `OF_BUCKETS`."""
    bucket: str
    servers: tuple[str, ...]
    """Servers that took over, caught up, or no longer have a replica."""
    sentence: str
    """Sentence about this bucket alone."""
    shape: str
    """Sentence for many buckets, with ``{who}``, ``{terms}`` and ``{took}``; equal for one cause."""
    term: int
    milliseconds: float = 0.0

    @property
    def run(self) -> str:
        """The run of the bucket."""
        return run_of(self.bucket)

    @property
    def cause(self) -> tuple[str, str, str]:
        """Key of the changes that share one sentence."""
        return self.kind, self.run, self.shape


def foreign_server_text(here: Heartbeat, cluster: str) -> str:
    """Return the sentence about a server of another cluster."""
    of = f" of {', '.join(here.runs[:_RUNS])}" if here.runs else ""
    return (
        f"{here.server} belongs to cluster {here.cluster}, this is {cluster}: it gets no lease and keeps "
        f"its data{of}. Either the controllers lost their metadata: restore it. Or the server's "
        "folder belongs to another cluster: start it with an empty one"
    )


def summary_text(changes: Sequence[BucketEvent]) -> str:
    """Return one sentence for changes that share a cause; for a single change, its own sentence.

    >>> shape = "primary b2 ended; {who|secondary|secondaries} took over, {terms}, {took}"
    >>> def change(n, who):
    ...     return BucketEvent("elected", f"run/000{n}", (who,), "", shape, 3 + n, 301.0 + n)
    >>> summary_text([change(0, "c"), change(1, "d"), change(2, "c")])
    '3 buckets of run: primary b2 ended; secondaries c (2), d (1) took over, terms 3 to 5, in 301 to 303 ms'
    """
    if len(changes) == 1:
        return changes[0].sentence
    first = changes[0]
    count = len({each.bucket for each in changes})
    many = f"{count} buckets" if count > 1 else display_name_without_run(first.bucket)
    whose = f" of {first.run}" if first.run else ""
    numbers = sorted(each.term for each in changes)
    times = [each.milliseconds for each in changes]
    said = {
        "who": servers_with_counts(changes),
        "terms": _count_range_text("term", "terms", numbers[0], numbers[-1]),
        "took": f"in {_range(min(times), max(times))} ms",
    }
    return f"{many}{whose}: {_fill(first.shape, said, len(changes_by_server(changes)) == 1)}"


def changes_by_server(changes: Sequence[BucketEvent]) -> dict[str, int]:
    """Return the number of changes of each server, in descending order."""
    counted = Counter(name for each in changes for name in each.servers)
    return dict(sorted(counted.items(), key=lambda one: (-one[1], one[0])))


def servers_with_counts(changes: Sequence[BucketEvent]) -> str:
    """Return the servers, each with its number of changes."""
    found = changes_by_server(changes)
    return next(iter(found)) if len(found) == 1 else ", ".join(f"{each} ({n})" for each, n in found.items())


def _fill(shape: str, said: dict[str, str], is_one: bool) -> str:
    """Fill a shape: ``{who|ONE|MANY}`` puts a word before the names, ``{ONE|MANY}`` stands for one word."""
    found, rest = "", shape
    while "{" in rest:
        before, _, rest = rest.partition("{")
        inside, _, rest = rest.partition("}")
        name, *words = inside.split("|")
        if name in said:
            word = f"{words[not is_one]} " if words else ""
            found += f"{before}{word}{said[name]}"
        else:
            found += f"{before}{name if is_one else words[0]}"
    return found + rest


def _count_range_text(one: str, many: str, least: int, most: int) -> str:
    return f"{one} {least}" if least == most else f"{many} {least} to {most}"


def _range(least: float, most: float) -> str:
    return f"{least:.0f}" if round(least) == round(most) else f"{least:.0f} to {most:.0f}"


def group_event(old: Group, new: Group, reason: Reason) -> BucketEvent | None:
    """Return a change made without an election; None if nothing changed."""
    bucket = display_name(new.bucket)
    caught = tuple(each for each in new.secondaries if each not in old.secondaries)
    came = tuple(each for each in new.learners if each not in old.all_servers)
    left = tuple(each for each in old.all_servers if each not in new.all_servers)
    if caught:
        sentence = f"{bucket}: {caught[0]} has caught up, and is a secondary, term {new.term}"
        shape = "{who} {has|have} caught up, and {is a secondary|are secondaries}, {terms}"
        return BucketEvent("caught_up", new.bucket, caught[:1], sentence, shape, new.term)
    if left:
        names = ", ".join(left)
        sentence = f"{bucket}: {names} no longer has a copy, term {new.term}: {reason.single}"
        shape = f"{{who}} no longer {{has|have}} a copy, {{terms}}: {_plain(reason.per_bucket)}"
        return BucketEvent("replica_removed", new.bucket, left, sentence, shape, new.term)
    if came:
        sentence = f"{bucket}: {came[0]} copies from {new.primary}, term {new.term}: {reason.single}"
        shape = f"{{who}} {{copies|copy}} from their primaries, {{terms}}: {_plain(reason.per_bucket)}"
        return BucketEvent("replica_added", new.bucket, came[:1], sentence, shape, new.term)
    return None


def election_event(new: Group, election: Election, now: float) -> BucketEvent:
    """Return the change made by an election."""
    bucket, old = display_name(new.bucket), election.group
    took = 1000 * (now - election.noticed)
    end = f"term {new.term}, in {took:.0f} ms"

    def told(kind: str, sentence: str, shape: str) -> BucketEvent:
        whole = f"{bucket}: {sentence}, {end}"
        return BucketEvent(
            kind, new.bucket, (new.primary,), whole, f"{shape}, {{terms}}, {{took}}", new.term, took
        )

    if is_restored(old.primary):
        return told(
            "recovered",
            f"restored; {new.primary} starts from its disk",
            "restored; {who} {starts from its disk|start from their disks}",
        )
    if new.incarnation != old.incarnation:
        lost = "every copy was lost"
        return told(
            "recovered",
            f"{lost}; {new.primary} resumes from its disk",
            f"{lost}; {{who}} {{resumes from its disk|resume from their disks}}",
        )
    why = _plain(election.reason)
    if election.cause is ElectionReason.REBALANCE:
        why = "primaries are balanced"
    if new.primary == old.primary:
        return told(
            "elected",
            f"{election.reason}; {new.primary} remains its primary",
            f"{why}; {{who}} {{remains the primary|remain primaries}}",
        )
    if election.cause is ElectionReason.REBALANCE:
        kind, verb, verbs = "rebalanced", "leads now", "{leads now|lead now}"
    elif election.cause is ElectionReason.DRAINED:
        kind, verb, verbs = "handed_over", "took over", "took over"
    else:
        kind, verb, verbs = "elected", "took over", "took over"
    return told(
        kind,
        f"{election.reason}; secondary {new.primary} {verb}",
        f"{why}; {{who|secondary|secondaries}} {verbs}",
    )


def waiting_event(group: Group, silent: Sequence[str], *, is_empty: bool = False) -> BucketEvent:
    """Return the change of a bucket without an available replica; ``silent``: members that may come back;
    ``is_empty``: True if the disk that was restored is available and has no data."""
    if silent and is_restored(group.primary) and [disk_of(group.primary)] != [*silent]:
        made = (
            f"the metadata was rebuilt from disks, and {', '.join(silent)} may have newer data of "
            "{it|them}: start the host; otherwise another disk is used after a minute"
        )
        sentence = f"{display_name(group.bucket)}: {_fill(made, {}, True)}"
        return BucketEvent("unavailable", group.bucket, tuple(silent), sentence, made, group.term)
    if is_restored(group.primary):
        disk, order = disk_of(group.primary), f"`cotswold cluster remove {run_of(group.bucket)}`"
        restored = f"restored, and {disk} is not available yet: start the host with that folder"
        if is_empty:
            restored = (
                f"restored, but {disk} is available and has no such data: restore again into an empty "
                f"folder, or delete the run: {order}"
            )
        sentence = f"{display_name(group.bucket)}: it was {restored}"
        many = f"{{it was|they were}} {restored}"
        return BucketEvent("unavailable", group.bucket, (group.primary,), sentence, many, group.term)
    if not silent:
        lost = (
            "no available server has any of {}, in memory or on disk: unless one comes back, end "
            "the run and resume it from its last checkpoint"
        )
        sentence, many = f"{display_name(group.bucket)}: {lost.format('it')}", lost.format("them")
        return BucketEvent("unavailable", group.bucket, (group.primary,), sentence, many, group.term)
    order = "`cotswold cluster drain NAME --lost` declares one lost for good"
    one, shape = "its servers are silent", "{its|their} servers are silent"
    sentence = f"{display_name(group.bucket)}: {one}; it waits for {', '.join(silent)}; {order}"
    many = f"{shape}; {{it waits|they wait}} for {{who}}; {order}"
    return BucketEvent("unavailable", group.bucket, tuple(silent), sentence, many, group.term)


def _plain(why: str) -> str:
    """Return words without braces, for use in a shape."""
    return why.replace("{", "(").replace("}", ")")
