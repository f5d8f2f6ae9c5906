"""The ledger of portions: which session has claimed, which has computed each of them, and which count.

Knows: portions by number, sessions, names of sums. Does not know: the contents and purpose of a portion, the
order of assignment (`batch.core.chunk_queues`), time.

A portion goes through these states and no others:

    state       event                             next state
    wanted      claim                             claimed
    claimed     claim (a backup copy)             claimed
    claimed     release, lose: others claim it    claimed
    claimed     release, lose: no other claim     wanted
    claimed     offer, accepted                   counted
    wanted      offer, accepted                   counted     (late, after the claim was lost)
    wanted      withdraw                          left out
    claimed     withdraw                          left out
    left out    offer                             left out    (the whole sum is refused)
    counted     any                               counted     (an offer that names it is refused whole)

A claim is *computed* once the portion is in a sum of its session. This is not a state of the portion, because
the session's end undoes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from cotswold.wire import SumName


@dataclass(frozen=True)
class Claim:
    """The claim of a session on a portion."""

    session: int
    portion: int
    grant: int
    is_isolated: bool
    """True if it was granted as a separate sum."""
    since: float
    """Time of the grant."""
    number: int | None = None
    """Number of the session's sum that contains it, once computed."""


@dataclass
class PortionLedger:
    """The portions of one evaluation."""

    portions: Sequence[int]
    """Portions that are initially wanted, ascending."""
    counted: dict[int, SumName] = field(default_factory=dict)
    """The accepted sum that contains each counted portion."""
    log: list[SumName] = field(default_factory=list)
    """Accepted sums in order of acceptance."""
    _missing: set[int] = field(init=False)
    """Portions that must still be counted: wanted or claimed."""
    _claims: dict[int, dict[int, Claim]] = field(default_factory=dict)
    """Claims by portion, then session; no entry for a portion without claims."""
    _session_claims: dict[int, dict[int, Claim]] = field(default_factory=dict)
    """Claims by session, then grant."""
    _computed: int = 0
    """Number of portions that some session has computed and that do not count yet."""

    def __post_init__(self) -> None:
        self._missing = set(self.portions)
        if len(self._missing) != len(self.portions):
            raise ValueError("portions must be unique")

    # --- queries ---

    @property
    def is_complete(self) -> bool:
        """True if every wanted portion counts."""
        return not self._missing

    @property
    def is_computed(self) -> bool:
        """True if every wanted portion counts or is in a live session's sum."""
        assert 0 <= self._computed <= len(self._missing), "more portions are computed than wanted"
        return self._computed == len(self._missing)

    @property
    def computed(self) -> int:
        """Number of portions that count or are in a live session's sum."""
        return len(self.counted) + self._computed

    def is_summed(self, portion: int) -> bool:
        """True if some session has computed the portion."""
        return any(claim.number is not None for claim in self._claims.get(portion, {}).values())

    @property
    def open(self) -> frozenset[int]:
        """Portions that must still be counted."""
        return frozenset(self._missing)

    def is_free(self, portion: int) -> bool:
        """True if the portion is wanted and has no claim."""
        return portion in self._missing and portion not in self._claims

    def claims(self, portion: int) -> list[Claim]:
        """Return the claims on a portion, oldest first."""
        return list(self._claims.get(portion, {}).values())

    def claims_of(self, session: int) -> list[Claim]:
        """Return the claims of the session, in the order of its grants."""
        return list(self._session_claims.get(session, {}).values())

    def claim_of(self, session: int, grant: int) -> Claim | None:
        """Return the claim behind a grant; None once it is settled or lost."""
        return self._session_claims.get(session, {}).get(grant)

    # --- events ---

    def claim(self, portion: int, session: int, grant: int, *, is_isolated: bool, now: float) -> None:
        """Claim the portion for a session that has no claim on it."""
        others = self._claims.setdefault(portion, {})
        assert portion in self._missing, f"portion {portion} is claimed but not wanted"
        assert session not in others, f"session {session} claims portion {portion} twice"
        assert grant not in self._session_claims.get(session, {}), (
            f"grant {grant} of session {session} is used twice"
        )
        claim = Claim(session, portion, grant, is_isolated, now)
        others[session] = claim
        self._session_claims.setdefault(session, {})[grant] = claim

    def compute(self, session: int, grant: int, number: int) -> bool:
        """Record that the portion of a grant is in the session's sum.

        False if it is already recorded, or if the claim is lost.
        """
        claim = self.claim_of(session, grant)
        if claim is None or claim.number == number:
            return False
        self._add(replace(claim, number=number))
        return True

    def restart(self, session: int, grant: int, now: float) -> None:
        """Grant the portion again: no sum of the session contains it, despite earlier reports."""
        claim = self.claim_of(session, grant)
        assert claim is not None, "the grant has no claim"
        self._add(replace(claim, number=None, since=now))

    def release(self, session: int, grant: int) -> int | None:
        """Release a grant; return its portion if no other claim is left on it."""
        claim = self.claim_of(session, grant)
        if claim is None:
            return None
        self._remove(claim)
        return claim.portion if self.is_free(claim.portion) else None

    def drop_session(self, session: int) -> list[int]:
        """Release all grants of an ended session; return the freed portions in the order of their grants."""
        freed = [self.release(session, claim.grant) for claim in self.claims_of(session)]
        assert session not in self._session_claims, f"session {session} still has claims"
        return [portion for portion in freed if portion is not None]

    def offer(self, name: SumName, portions: Sequence[int]) -> bool:
        """Offer a sum of these portions that all shards hold; return True if it counts, as a whole.

        A repeated offer of an accepted sum returns True and changes nothing. A refusal changes no claim.
        """
        if portions and all(self.counted.get(portion) == name for portion in portions):
            return True
        accepted = bool(portions) and all(portion in self._missing for portion in portions)
        assert len(set(portions)) == len(portions), f"{name} names a portion twice"
        if not accepted:
            return False
        for portion in portions:
            for claim in self.claims(portion):
                self._remove(claim)
            self._missing.remove(portion)
            self.counted[portion] = name
        self.log.append(name)
        return True

    def withdraw(self, portions: Iterable[int]) -> None:
        """Leave these portions out and drop their claims."""
        for portion in portions:
            assert portion in self._missing, f"portion {portion} is left out but not wanted"
            for claim in self.claims(portion):
                self._remove(claim)
            self._missing.remove(portion)

    # --- both indices and the number of computed portions ---

    def _add(self, claim: Claim) -> None:
        before = self.is_summed(claim.portion)
        self._claims[claim.portion][claim.session] = claim
        self._session_claims[claim.session][claim.grant] = claim
        self._computed += self.is_summed(claim.portion) - before

    def _remove(self, claim: Claim) -> None:
        before = self.is_summed(claim.portion)
        for index, first, second in (
            (self._claims, claim.portion, claim.session),
            (self._session_claims, claim.session, claim.grant),
        ):
            del index[first][second]
            if not index[first]:
                del index[first]
        self._computed += self.is_summed(claim.portion) - before
