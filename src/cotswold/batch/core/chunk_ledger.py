"""The ledger of portions: who has which, who has computed which, and which count.

Knows: portions by number, sessions, names of sums. Does not know: what a portion holds, what it is computed
for, which should come next (`queues`), time.

A portion goes through these states, and no others:

    state       what happens                      next state
    wanted      claim                             claimed
    claimed     claim (a backup copy)             claimed
    claimed     release, lose: others claim it    claimed
    claimed     release, lose: nobody does        wanted
    claimed     offer, accepted                   counted
    wanted      offer, accepted                   counted     (late, of one whose claim was lost)
    wanted      withdraw                          left out
    claimed     withdraw                          left out
    left out    offer                             left out    (the whole sum is refused)
    counted     anything                          counted     (an offer that names it is refused whole)

A claim is *computed* once the portion is in a sum of its session; that is no state of the portion, for a
death undoes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from cotswold.wire import SumName


@dataclass(frozen=True)
class Claim:
    """That a session has a portion in hand."""

    session: int
    portion: int
    grant: int
    apart: bool
    """Whether it was granted as a sum of its own."""
    since: float
    """When it was granted."""
    number: int | None = None
    """The sum of that session that it is in, once it is computed."""


@dataclass
class Ledger:
    """The portions of one evaluation."""

    portions: Sequence[int]
    """Those that are wanted at first, ascending."""
    counted: dict[int, SumName] = field(default_factory=dict)
    """The sum by which each counts."""
    log: list[SumName] = field(default_factory=list)
    """Sums in the order in which they were accepted."""
    _wanted: set[int] = field(init=False)
    """All that are to be counted and are not yet: wanted or claimed."""
    _claims: dict[int, dict[int, Claim]] = field(default_factory=dict)
    """By portion, then session; none for a portion without claims."""
    _hands: dict[int, dict[int, Claim]] = field(default_factory=dict)
    """The same by session, then grant."""
    _computed: int = 0
    """How many portions are computed by some session and not counted."""

    def __post_init__(self) -> None:
        self._wanted = set(self.portions)
        if len(self._wanted) != len(self.portions):
            raise ValueError("a portion is named twice")

    # --- what is asked ---

    @property
    def is_complete(self) -> bool:
        """Whether all that is wanted counts."""
        return not self._wanted

    @property
    def is_computed(self) -> bool:
        """Whether all that is wanted counts, or is at least in some living session's sum."""
        assert 0 <= self._computed <= len(self._wanted), "computed portions are wanted ones"
        return self._computed == len(self._wanted)

    @property
    def computed(self) -> int:
        """How many portions count, or are in some living session's sum."""
        return len(self.counted) + self._computed

    def is_in_sum(self, portion: int) -> bool:
        """Whether some session has computed it."""
        return any(claim.number is not None for claim in self._claims.get(portion, {}).values())

    @property
    def open(self) -> frozenset[int]:
        """Portions that are to be counted and are not yet."""
        return frozenset(self._wanted)

    def is_free(self, portion: int) -> bool:
        """Whether it is wanted and nobody has it."""
        return portion in self._wanted and portion not in self._claims

    def claims(self, portion: int) -> list[Claim]:
        """Who has it, the first first."""
        return list(self._claims.get(portion, {}).values())

    def hand(self, session: int) -> list[Claim]:
        """What the session has, in the order of its grants."""
        return list(self._hands.get(session, {}).values())

    def claim_of(self, session: int, grant: int) -> Claim | None:
        """The claim behind a grant; None once it is settled or lost."""
        return self._hands.get(session, {}).get(grant)

    # --- what happens ---

    def claim(self, portion: int, session: int, grant: int, *, apart: bool, now: float) -> None:
        """The portion is given to a session, which does not have it."""
        others = self._claims.setdefault(portion, {})
        assert portion in self._wanted, f"portion {portion} is given, and is not wanted"
        assert session not in others, f"portion {portion} is given to session {session} twice"
        assert grant not in self._hands.get(session, {}), f"grant {grant} of session {session} is used twice"
        claim = Claim(session, portion, grant, apart, now)
        others[session] = claim
        self._hands.setdefault(session, {})[grant] = claim

    def compute(self, session: int, grant: int, number: int) -> bool:
        """The portion of a grant is in the session's sum; False where that is known, or no claim is left."""
        claim = self.claim_of(session, grant)
        if claim is None or claim.number == number:
            return False
        self._put(replace(claim, number=number))
        return True

    def restart(self, session: int, grant: int, now: float) -> None:
        """The grant is made again: the portion is in no sum of the session, whatever was said."""
        claim = self.claim_of(session, grant)
        assert claim is not None, "there is a claim to start anew"
        self._put(replace(claim, number=None, since=now))

    def release(self, session: int, grant: int) -> int | None:
        """The session gives a grant back; its portion where that is now free."""
        claim = self.claim_of(session, grant)
        if claim is None:
            return None
        self._take(claim)
        return claim.portion if self.is_free(claim.portion) else None

    def lose(self, session: int) -> list[int]:
        """The session is over; the portions that are now free, in the order of their grants."""
        freed = [self.release(session, claim.grant) for claim in self.hand(session)]
        assert session not in self._hands, "nothing is left in its hand"
        return [portion for portion in freed if portion is not None]

    def offer(self, name: SumName, portions: Sequence[int]) -> bool:
        """All shards hold a sum of these portions: whether it counts. It does whole, or not at all.

        An offer of a sum that counts already is True again, and changes nothing. A refusal changes no claim.
        """
        if portions and all(self.counted.get(portion) == name for portion in portions):
            return True
        accepted = bool(portions) and all(portion in self._wanted for portion in portions)
        assert len(set(portions)) == len(portions), f"{name} names a portion twice"
        if not accepted:
            return False
        for portion in portions:
            for claim in self.claims(portion):
                self._take(claim)
            self._wanted.remove(portion)
            self.counted[portion] = name
        self.log.append(name)
        return True

    def withdraw(self, portions: Iterable[int]) -> None:
        """These are left out, whoever has them."""
        for portion in portions:
            assert portion in self._wanted, f"portion {portion} is left out, and is not wanted"
            for claim in self.claims(portion):
                self._take(claim)
            self._wanted.remove(portion)

    # --- keeping both indices and the number of computed portions ---

    def _put(self, claim: Claim) -> None:
        before = self.is_in_sum(claim.portion)
        self._claims[claim.portion][claim.session] = claim
        self._hands[claim.session][claim.grant] = claim
        self._computed += self.is_in_sum(claim.portion) - before

    def _take(self, claim: Claim) -> None:
        before = self.is_in_sum(claim.portion)
        for index, first, second in (
            (self._claims, claim.portion, claim.session),
            (self._hands, claim.session, claim.grant),
        ):
            del index[first][second]
            if not index[first]:
                del index[first]
        self._computed += self.is_in_sum(claim.portion) - before
