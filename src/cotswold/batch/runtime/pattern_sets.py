"""Which patterns evaluations count: sets of portions by name, drawn anew for every cycle.

Knows: the dealing, draws, parts of sets, sets that are to be repeated. Does not know: workers, vectors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cotswold.batch.core.permutation import Dealing, portions_of, words
from cotswold.errors import UserError

ALL = "all"
"""The name of the set of all patterns."""


@dataclass
class Sets:
    """The sets of one run, in their order. What is kept names the present one and its parts."""

    dealing: Dealing
    draws: int = 0
    """How many sets were drawn."""
    _named: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _recorded: deque[tuple[int, ...]] = field(default_factory=deque)
    """Sets to be drawn next, in this order."""

    def drawn(self, portions: Sequence[int]) -> str:
        """The name of a new set, whose portions counted in an evaluation that chose its own."""
        self.draws += 1
        self._named.clear()
        if len(portions) == self.dealing.portions:
            name = ALL
        else:
            name = f"draw {self.draws}"
        self._named[name] = tuple(portions)
        return name

    def portions(self, name: str) -> tuple[int, ...]:
        """The portions of a set; raises UserError for a name that is not of this cycle."""
        if name == ALL:
            return tuple(range(self.dealing.portions))
        if name not in self._named:
            raise UserError(f"no evaluation of this cycle counted the patterns {name!r}; draw them anew")
        return self._named[name]

    def part(self, name: str, fraction: float) -> str:
        """The name of about this fraction of a set: portions at random, the same for the same arguments."""
        if not 0 < fraction <= 1:
            raise UserError(f"a part of {fraction} of the patterns; it lies above 0 and is at most 1")
        whole = self.portions(name)
        count = max(1, round(fraction * len(whole)))
        if count == len(whole):
            return name
        chosen = f"{name}, {fraction:g} of it"
        self._named[chosen] = tuple(sorted(self.dealing.shuffled(self.draws, whole)[:count]))
        return chosen

    def next_recorded(self) -> tuple[int, ...] | None:
        """The set that is to be drawn now; None where the objective chooses."""
        return self._recorded.popleft() if self._recorded else None

    def replay(self, recorded: Sequence[str]) -> None:
        """From now on draw these sets, in the words in which they were recorded; then choose again.

        Raises UserError for words that are none of this dealing.
        """
        found = []
        for text in recorded:
            try:
                portions = portions_of(text)
            except ValueError as error:
                raise UserError(f"the recorded set {text[:60]!r} cannot be read: {error}") from error
            if not portions or portions[-1] >= self.dealing.portions:
                raise UserError(
                    f"the recorded set {text[:60]!r} has portions beyond the {self.dealing.portions} of this "
                    "run; replay with the same data and the same size of portions"
                )
            found.append(portions)
        self._recorded.extend(found)

    def state(self) -> Mapping[str, object]:
        """What resume needs, as plain values."""
        return {
            "seed": self.dealing.seed,
            "patterns": self.dealing.patterns,
            "portion": self.dealing.portion,
            "draws": self.draws,
            "sets": {name: words(portions) for name, portions in self._named.items()},
            "recorded": [words(portions) for portions in self._recorded],
        }

    def load(self, state: Mapping[str, object]) -> None:
        """Go on from a state; raises UserError where it is of another dealing."""
        own = (self.dealing.seed, self.dealing.patterns, self.dealing.portion)
        if (found := (state["seed"], state["patterns"], state["portion"])) != own:
            raise UserError(
                f"the state deals {found[1]} patterns in portions of {found[2]} by seed {found[0]}, this run "
                f"{own[1]} in portions of {own[2]} by seed {own[0]}; resume with the same data and settings"
            )
        draws, sets, recorded = state["draws"], state["sets"], state["recorded"]
        assert isinstance(draws, int) and isinstance(sets, Mapping) and isinstance(recorded, Sequence)
        self.draws = draws
        self._named = {name: portions_of(text) for name, text in sets.items()}
        self._recorded = deque(portions_of(text) for text in recorded)
