"""Sets of samples for evaluations: named sets of portions, drawn for every cycle.

Knows: the permutation, draws, parts of sets, sets to repeat. Does not know: workers, vectors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cotswold.errors import UserError
from cotswold.shards.core.permutation import PortionPermutation, format_ranges, parse_ranges

ALL = "all"
"""Name of the set of all samples."""


@dataclass
class SampleSets:
    """The sample sets of one run, in order. Only the current set and its parts have names."""

    permutation: PortionPermutation
    draws: int = 0
    """Number of sets drawn so far."""
    _named: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _recorded: deque[tuple[int, ...]] = field(default_factory=deque)
    """Recorded sets to draw next, in this order."""

    def add_drawn(self, portions: Sequence[int]) -> str:
        """Name a new set, whose portions an evaluation has chosen and counted."""
        self.draws += 1
        self._named.clear()
        if len(portions) == self.permutation.portions:
            name = ALL
        else:
            name = f"draw {self.draws}"
        self._named[name] = tuple(portions)
        return name

    def portions(self, name: str) -> tuple[int, ...]:
        """Return the portions of a set; raise UserError for a name that is not of this cycle."""
        if name == ALL:
            return tuple(range(self.permutation.portions))
        if name not in self._named:
            raise UserError(f"unknown set of samples {name!r} in this cycle; draw a new set")
        return self._named[name]

    def subset(self, name: str, fraction: float) -> str:
        """Name a random fraction of a set's portions; equal arguments return the same part."""
        if not 0 < fraction <= 1:
            raise UserError(f"fraction must be above 0 and at most 1, got {fraction}")
        whole = self.portions(name)
        count = max(1, round(fraction * len(whole)))
        if count == len(whole):
            return name
        chosen = f"{name}, {fraction:g} of it"
        self._named[chosen] = tuple(sorted(self.permutation.shuffled(self.draws, whole)[:count]))
        return chosen

    def next_replayed(self) -> tuple[int, ...] | None:
        """Return the recorded set to draw now; None if the objective chooses."""
        return self._recorded.popleft() if self._recorded else None

    def replay(self, recorded: Sequence[str]) -> None:
        """Draw these recorded sets next, then choose again.

        Raise UserError for text that does not fit this permutation.
        """
        found = []
        for text in recorded:
            try:
                portions = parse_ranges(text)
            except ValueError as error:
                raise UserError(f"the recorded set {text[:60]!r} cannot be read: {error}") from error
            if not portions or portions[-1] >= self.permutation.portions:
                raise UserError(
                    f"the recorded set {text[:60]!r} has portions beyond the {self.permutation.portions} of "
                    "this run; replay with the same data and the same size of portions"
                )
            found.append(portions)
        self._recorded.extend(found)

    def state(self) -> Mapping[str, object]:
        """Return the state to resume from, as plain values."""
        return {
            "seed": self.permutation.seed,
            "samples": self.permutation.samples,
            "portion": self.permutation.portion,
            "draws": self.draws,
            "sets": {name: format_ranges(portions) for name, portions in self._named.items()},
            "recorded": [format_ranges(portions) for portions in self._recorded],
        }

    def load(self, state: Mapping[str, object]) -> None:
        """Restore a state; raise UserError if it has another permutation."""
        own = (self.permutation.seed, self.permutation.samples, self.permutation.portion)
        if (found := (state["seed"], state["samples"], state["portion"])) != own:
            raise UserError(
                f"the state has {found[1]} samples in portions of {found[2]} with seed {found[0]}, this run "
                f"{own[1]} in portions of {own[2]} with seed {own[0]}; resume with the same data and settings"
            )
        draws, sets, recorded = state["draws"], state["sets"], state["recorded"]
        assert isinstance(draws, int) and isinstance(sets, Mapping) and isinstance(recorded, Sequence)
        self.draws = draws
        self._named = {name: parse_ranges(text) for name, text in sets.items()}
        self._recorded = deque(parse_ranges(text) for text in recorded)
