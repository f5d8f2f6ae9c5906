"""What happened to buckets, in sentences for people: one of each, and one of many that have the same cause.

Knows: groups, words. Does not know: why anything is done; it is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cotswold.replication.controller.election import Cause, Election
from cotswold.replication.replica.saved_bucket import disk_of, is_restored
from cotswold.wire import Group, Here
from cotswold.wire.names import run_of, spoken

GATHERED = "gathered"
"""Of which kind an event is that says again, of many buckets, what was said of each."""
OF_BUCKETS = ("elected", "handed-over", "balanced", "revived", "waits", "caught-up", "copied", "left-out")
"""Kinds of what is said of each."""

_RUNS = 3
"""Of which one sentence says the names."""


@dataclass(frozen=True)
class Change:
    """What became of one bucket."""

    kind: str
    """One of `OF_BUCKETS`."""
    bucket: str
    servers: tuple[str, ...]
    """Who took over, caught up, or has none any more."""
    sentence: str
    """Of this bucket alone."""
    shape: str
    """The sentence of many, with ``{who}``, ``{terms}`` and ``{took}``, and what is the same of one cause."""
    term: int
    milliseconds: float = 0.0

    @property
    def run(self) -> str:
        """Whose bucket it is."""
        return run_of(self.bucket)

    @property
    def cause(self) -> tuple[str, str, str]:
        """The same of all that are told together."""
        return self.kind, self.run, self.shape


def stranger(here: Here, cluster: str) -> str:
    """Of a server of another cluster than this."""
    of = f" of {', '.join(here.runs[:_RUNS])}" if here.runs else ""
    return (
        f"{here.server} is of cluster {here.cluster}, and this is {cluster}: it is given nothing, and keeps "
        f"what it has{of}. Either the state of the controllers was lost, and is to be had back, or its "
        "folder is of another cluster: start it with an empty one"
    )


def gathered(changes: Sequence[Change]) -> str:
    """A sentence of some that have one cause; that of the bucket where there is one.

    >>> shape = "primary b2 ended; {who|secondary|secondaries} took over, {terms}, {took}"
    >>> def change(n, who):
    ...     return Change("elected", f"run/000{n}", (who,), "", shape, 3 + n, 301.0 + n)
    >>> gathered([change(0, "c"), change(1, "d"), change(2, "c")])
    '3 buckets of run: primary b2 ended; secondaries c (2), d (1) took over, terms 3 to 5, in 301 to 303 ms'
    """
    if len(changes) == 1:
        return changes[0].sentence
    first = changes[0]
    count = len({each.bucket for each in changes})
    many = f"{count} buckets" if count > 1 else spoken(first.bucket).partition(" of ")[0]
    whose = f" of {first.run}" if first.run else ""
    numbers = sorted(each.term for each in changes)
    times = [each.milliseconds for each in changes]
    said = {
        "who": in_numbers(changes),
        "terms": _between("term", "terms", numbers[0], numbers[-1]),
        "took": f"in {_range(min(times), max(times))} ms",
    }
    return f"{many}{whose}: {_filled(first.shape, said, len(servers_of(changes)) == 1)}"


def servers_of(changes: Sequence[Change]) -> dict[str, int]:
    """Of how many of these each server is told, the most first."""
    counted = Counter(name for each in changes for name in each.servers)
    return dict(sorted(counted.items(), key=lambda one: (-one[1], one[0])))


def in_numbers(changes: Sequence[Change]) -> str:
    """Servers, each with how many of these are told of it."""
    found = servers_of(changes)
    return next(iter(found)) if len(found) == 1 else ", ".join(f"{each} ({n})" for each, n in found.items())


def _filled(shape: str, said: dict[str, str], is_one: bool) -> str:
    """A shape in which ``{who|ONE|MANY}`` has a word before the names, and ``{ONE|MANY}`` is a word alone."""
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


def _between(one: str, many: str, least: int, most: int) -> str:
    return f"{one} {least}" if least == most else f"{many} {least} to {most}"


def _range(least: float, most: float) -> str:
    return f"{least:.0f}" if round(least) == round(most) else f"{least:.0f} to {most:.0f}"


def changed(old: Group, new: Group, why: str) -> Change | None:
    """A change that no election made; None where nothing is different."""
    bucket = spoken(new.bucket)
    caught = tuple(each for each in new.secondaries if each not in old.secondaries)
    came = tuple(each for each in new.learners if each not in old.everybody)
    left = tuple(each for each in old.everybody if each not in new.everybody)
    if caught:
        sentence = f"{bucket}: {caught[0]} has caught up, and is a secondary, term {new.term}"
        shape = "{who} {has|have} caught up, and {is a secondary|are secondaries}, {terms}"
        return Change("caught-up", new.bucket, caught[:1], sentence, shape, new.term)
    if left:
        names = ", ".join(left)
        sentence = f"{bucket}: {names} has no copy any more, term {new.term}: {why}"
        shape = f"{{who}} {{has|have}} no copy any more, {{terms}}: {_plain(why)}"
        return Change("left-out", new.bucket, left, sentence, shape, new.term)
    if came:
        sentence = f"{bucket}: {came[0]} learns what {new.primary} has, term {new.term}: {why}"
        each = _plain(why).replace("it has", "each has", 1)
        shape = f"{{who}} {{learns|learn}} what their primaries have, {{terms}}: {each}"
        return Change("copied", new.bucket, came[:1], sentence, shape, new.term)
    return None


def elected(new: Group, election: Election, now: float) -> Change:
    """What an election has made."""
    bucket, old = spoken(new.bucket), election.group
    took = 1000 * (now - election.noticed)
    end = f"term {new.term}, in {took:.0f} ms"

    def told(kind: str, sentence: str, shape: str) -> Change:
        whole = f"{bucket}: {sentence}, {end}"
        return Change(
            kind, new.bucket, (new.primary,), whole, f"{shape}, {{terms}}, {{took}}", new.term, took
        )

    if is_restored(old.primary):
        return told(
            "revived",
            f"restored; {new.primary} begins with what its disk has",
            "restored; {who} {begins with what its disk has|begin with what their disks have}",
        )
    if new.life != old.life:
        lost = "every copy was lost"
        return told(
            "revived",
            f"{lost}; {new.primary} goes on from its disk",
            f"{lost}; {{who}} {{goes on from its disk|go on from their disks}}",
        )
    why = _plain(election.why)
    if election.cause is Cause.EVEN:
        why = "servers are to lead as many buckets each"
    if new.primary == old.primary:
        return told(
            "elected",
            f"{election.why}; {new.primary} stays its primary",
            f"{why}; {{who}} {{stays the primary|stay primaries}}",
        )
    if election.cause is Cause.EVEN:
        kind, verb, verbs = "balanced", "leads now", "{leads now|lead now}"
    elif election.cause is Cause.DRAINED:
        kind, verb, verbs = "handed-over", "took over", "took over"
    else:
        kind, verb, verbs = "elected", "took over", "took over"
    return told(
        kind,
        f"{election.why}; secondary {new.primary} {verb}",
        f"{why}; {{who|secondary|secondaries}} {verbs}",
    )


def waits(group: Group, silent: Sequence[str], *, is_empty: bool = False) -> Change:
    """Nobody that has it is there; ``silent``: those who may come back; ``is_empty``: the disk on which it
    was restored is there, and has nothing of it."""
    if silent and is_restored(group.primary) and [disk_of(group.primary)] != [*silent]:
        made = (
            f"the controllers' state was made from disks, and {', '.join(silent)} may have more of "
            "{it|them}: start the host; if it does not come, another disk goes on after a minute"
        )
        sentence = f"{spoken(group.bucket)}: {_filled(made, {}, True)}"
        return Change("waits", group.bucket, tuple(silent), sentence, made, group.term)
    if is_restored(group.primary):
        disk, order = disk_of(group.primary), f"`cotswold cluster remove {run_of(group.bucket)}`"
        restored = f"restored, and {disk} is not there yet: start the host into whose folder it was restored"
        if is_empty:
            restored = (
                f"restored, and {disk}, which is there, has nothing of that: restore again into an empty "
                f"folder, or have the cluster forget it: {order}"
            )
        sentence = f"{spoken(group.bucket)}: it was {restored}"
        many = f"{{it was|they were}} {restored}"
        return Change("waits", group.bucket, (group.primary,), sentence, many, group.term)
    if not silent:
        lost = (
            "no server that is there has anything of it, in memory or on a disk: unless one comes back, end "
            "the run and resume it, from its last checkpoint"
        )
        sentence, many = f"{spoken(group.bucket)}: {lost}", lost.replace(" of it", " of them")
        return Change("waits", group.bucket, (group.primary,), sentence, many, group.term)
    order = "`cotswold cluster drain NAME --lost` gives up one that never comes back"
    one, shape = "whoever has it is silent", "whoever has {it|them} is silent"
    sentence = f"{spoken(group.bucket)}: {one}; it waits for {', '.join(silent)}; {order}"
    many = f"{shape}; {{it waits|they wait}} for {{who}}; {order}"
    return Change("waits", group.bucket, tuple(silent), sentence, many, group.term)


def _plain(why: str) -> str:
    """Words that are in a shape."""
    return why.replace("{", "(").replace("}", ")")
