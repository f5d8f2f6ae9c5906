"""Copies of a bucket: between its primary, its secondaries, and the controllers.

Knows: the fields. Does not know: what shards hold, who elects.

A *bucket* is some shards with one primary at a time. What is different in it is counted by an *index*; who
has a copy is said by a *group*, whose *term* grows with every change of it. So each message names a bucket
and a term, and one of a term that is over is told from one that counts. Source: Chilimbi et al. 2014,
section 3.3.3.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.wire.of_rounds import Write, Written
from cotswold.wire.of_updates import (
    Applied,
    FrozenPart,
    Order,
    Ordered,
    PulledNewer,
    PullFrozen,
    PullNewer,
    Ranges,
    Update,
    UpdateRefused,
)
from cotswold.wire.of_vectors import Pull, Pulled

Enclosed = (
    Update
    | PullNewer
    | Order
    | PullFrozen
    | Pull
    | Write
    | Applied
    | UpdateRefused
    | PulledNewer
    | Ordered
    | FrozenPart
    | Pulled
    | Written
)
"""What clients and servers say to each other, of whatever shards."""


@dataclass(frozen=True)
class Group:
    """Who has copies of a bucket in a term."""

    bucket: str
    term: int
    primary: str
    secondaries: tuple[str, ...] = ()
    """What is acknowledged, each of these has prepared."""
    learners: tuple[str, ...] = ()
    """These are to become secondaries, once they have what the primary has."""
    life: int = 0
    """The term in which it was revived from a disk last, whose window was lost; 0 for never."""

    @property
    def members(self) -> tuple[str, ...]:
        """The primary and its secondaries: each has whatever was acknowledged."""
        return (self.primary, *self.secondaries)

    @property
    def everybody(self) -> tuple[str, ...]:
        """The learners too."""
        return (*self.members, *self.learners)


@dataclass(frozen=True)
class SessionState:
    """What every copy knows of a session: enough to count each of its updates once."""

    number: int
    name: str
    last: int
    """The number of its newest update that was answered; the client sends what follows again."""
    applied: Applied | None
    """The answer to that, if it was this."""
    refused: UpdateRefused | None
    """The answer to that, if it was this."""
    samples: Ranges
    missed: Ranges
    checkpoint: int
    marked: int
    worked: int


@dataclass(frozen=True)
class FrozenState:
    """What a checkpoint has of a bucket, besides numbers."""

    checkpoint: int
    versions: tuple[int, ...]
    samples: tuple[tuple[int, Ranges, Ranges], ...]
    is_now: bool
    """Whether its numbers are those that the bucket has after this change; otherwise they come with it."""


@dataclass(frozen=True)
class Change:
    """What is different in a bucket since an index; all of it where that is -1."""

    shards: tuple[int, ...]
    versions: tuple[int, ...]
    sessions: tuple[SessionState, ...]
    """Those that are different."""
    living: tuple[int, ...]
    """The numbers of all that live."""
    ended: tuple[int, ...]
    """The numbers of those that ended with the newest order."""
    gone: tuple[int, ...]
    """The numbers of those that ended since a checkpoint began which is not frozen."""
    past: tuple[int, ...]
    """The numbers of those that ended before, and have samples that are not settled."""
    void: int
    """Sessions to this number were of a life that is over, and push no more."""
    restored: int
    """The newest order that the disk knew with which the bucket's life began."""
    order: Order | None
    """The newest, if it is different."""
    frozen: FrozenState | None
    """If it is different, and there is one."""
    checkpoint: int
    """The newest that is frozen."""


@dataclass(frozen=True)
class Prepare:
    """The primary wants this kept until it is committed; answered by `Prepared`."""

    bucket: str
    term: int
    after: int
    """The index from which on it says what is different; -1 where it says everything."""
    index: int
    """The bucket's, with it."""
    committed: int
    """The greatest index that all members have prepared."""
    change: Change | None
    """None where nothing is different, and only ``committed`` is told."""
    names: tuple[str, ...] = ()
    """The vectors of which numbers come."""
    buffers: tuple[object, ...] = ()
    """Those of each vector's shards in the order of ``change.shards``, all of a vector in one if they lie
    side by side; then those of a frozen state that is not what is now, of all shards."""
    onward: tuple[str, ...] = ()
    """To whom it is to be handed on: to the first of these, with the others."""


@dataclass(frozen=True)
class Prepared:
    """A member has everything to this index, in memory."""

    bucket: str
    term: int
    server: str
    index: int
    """-1 where it has nothing that counts."""
    is_lacking: bool
    """Whether something came that begins above this index, and so was not kept."""
    saved: int = -1
    """To which index it is on the member's disk too; -1 where nothing is."""


@dataclass(frozen=True)
class Fence:
    """A controller elects: whoever hears this takes part in no term below; answered by `Fenced`."""

    epoch: int
    """Of the controller."""
    bucket: str
    term: int
    """The next."""


@dataclass(frozen=True)
class Fenced:
    """What a server has of a bucket; it will take part in no lower term."""

    bucket: str
    term: int
    """Of the fence."""
    server: str
    of_term: int
    """The newest term of which the server knew that it was a member."""
    index: int
    """The greatest that is prepared; -1 where it has nothing that counts."""


@dataclass(frozen=True)
class FindSaved:
    """Every member of a bucket is gone: what a server has of it on its disk is wanted; answered by
    `FoundSaved`, once that is read and is sound."""

    epoch: int
    """Of the controller."""
    bucket: str


@dataclass(frozen=True)
class FoundSaved:
    """What a server has of a bucket on its disk: the greatest (life, term, index) has lost the least."""

    bucket: str
    server: str
    life: int
    term: int
    """In which it was saved."""
    index: int
    """-1 where there is nothing that is sound."""
    members: tuple[str, ...] = ()
    """Servers of the newest group that the copy knew: each of them may have more."""


@dataclass(frozen=True)
class Elsewhere:
    """The server is not the primary of the bucket: ask there, or ask a controller."""

    bucket: str
    term: int
    """The newest of which it knows."""
    primary: str
    """Its primary; empty where that is not known."""


@dataclass(frozen=True)
class Caught:
    """A learner has what the primary has, which commits nothing without it any more."""

    bucket: str
    term: int
    server: str
    """The primary."""
    learner: str


@dataclass(frozen=True)
class Silent:
    """A primary hears nothing of a copy."""

    bucket: str
    term: int
    server: str
    """The primary."""
    copy: str


@dataclass(frozen=True)
class TakeOver:
    """A secondary hears nothing of the primary, and would take its place."""

    bucket: str
    term: int
    server: str
    """The secondary."""
    primary: str


@dataclass(frozen=True)
class Assign:
    """A controller says who has copies of a bucket; answered by `Assigned`."""

    epoch: int
    """Of the controller: one of a lower epoch than another that was heard leads no more."""
    group: Group
    number: int = 0
    """Of the question, whether the server is there."""


@dataclass(frozen=True)
class Assigned:
    """The server acts by it."""

    bucket: str
    term: int
    server: str
    number: int = 0
    """Of the question."""


@dataclass(frozen=True)
class Here:
    """A server lives, and asks for its lease; answered by `Leased`."""

    server: str
    host: str
    """On which it runs: copies of a bucket go to different ones where there are."""
    address: str
    number: int
    """Of the lease that is asked for."""
    leads: tuple[tuple[str, int], ...] | None
    """(bucket, term) of those of which it acts as the primary; None where they are those that it said with
    the same ``claims``."""
    fenced: tuple[tuple[str, int], ...] = ()
    """(bucket, term) of those in which it takes part in no lower term, and knows of no group of that."""
    peer_address: str = ""
    """Where other servers reach it; empty where that is ``address``, too."""
    runs: tuple[str, ...] = ()
    """Of which it has copies, in memory or on its disk."""
    claims: int = 0
    """Another number whenever ``leads`` are others."""
    cluster: str = ""
    """The name of the one whose runs it has; empty where it has none."""
    answered: int = 0
    """The number of the newest `Leased` that it has heard."""
    key: str = ""
    """A secret that the supervisor has given this server, and that controllers know; empty for none."""


@dataclass(frozen=True)
class Leased:
    """The lease that was asked for, from when it was."""

    epoch: int
    server: str
    number: int
    seconds: float
    """0 where the server is to say first what it leads."""
    cluster: str = ""
    """The name of the controllers' cluster: a server that has anything is of the one that gave it that."""


@dataclass(frozen=True)
class NotLeading:
    """The controller does not lead."""

    epoch: int
    leader: str
    """Who does, as far as it knows; empty where it does not."""


@dataclass(frozen=True)
class Ended:
    """A supervisor has seen the process of a server end: it holds no lease any more."""

    server: str
    why: str
    key: str = ""
    """That of the server, by which its supervisor is known."""


@dataclass(frozen=True)
class Create:
    """A coordinator wants buckets for a run, and says so until `Found` has them."""

    run: str
    description: str
    """What servers must know of the run's buckets, to hold one."""
    buckets: tuple[str, ...]
    servers: int
    """They are made once so many servers are there."""


@dataclass(frozen=True)
class Describe:
    """A server is to hold a bucket of a run that it does not know; answered by `Described`."""

    run: str
    number: int = 0
    """Of the question, by which its answer is known; 0 where nobody looks at that."""


@dataclass(frozen=True)
class Described:
    """What a controller was told of a run; empty where it was told nothing."""

    run: str
    description: str
    number: int = 0
    """Of the question."""
    drained: tuple[str, ...] = ()
    """Where a supervisor asks about no run: servers of its host that an operator drains, and that have no
    copies any more."""


@dataclass(frozen=True)
class OfBucket:
    """A client's message to a bucket, or the bucket's to a client."""

    bucket: str
    term: int
    """The newest of the bucket of which the sender knows."""
    message: Enclosed


@dataclass(frozen=True)
class Find:
    """A client wants to know who has buckets; answered by `Found`."""

    terms: tuple[tuple[str, int], ...]
    """(bucket, the newest term that it knows); of buckets that are not named it wants all."""
    lost: tuple[str, ...] = ()
    """Servers that it has lost: they may be reached elsewhere now, as after another token."""
    number: int = 0
    """Of the question, by which its answer is known; 0 where nobody looks at that."""


@dataclass(frozen=True)
class Found:
    """The groups that are newer, and where their primaries are."""

    groups: tuple[Group, ...]
    addresses: tuple[tuple[str, str], ...]
    """(server, address)."""
    number: int = 0
    """Of the question."""
