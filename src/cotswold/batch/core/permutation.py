"""How patterns are dealt to portions: at random, without a table.

Knows: a seed, how many patterns there are, how many make a portion. Does not know: workers, what a pattern
is.

A Feistel network over the least even number of bits that can count the patterns, with cycle walking (Black
and Rogaway 2002): place i of the dealt order is a function of (seed, i) alone, so anybody can deal any
portion of millions of patterns without the rest.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

ROUNDS = 6
_MASK = (1 << 64) - 1


def mixed(value: int) -> int:
    """64 bits of which each depends on every bit of ``value`` (the last steps of SplitMix64)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@dataclass(frozen=True)
class Permutation:
    """A random order of ``range(count)``.

    >>> sorted(Permutation(seed=3, count=5)[place] for place in range(5))
    [0, 1, 2, 3, 4]
    """

    seed: int
    count: int

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"an order of {self.count} things")

    def __getitem__(self, place: int) -> int:
        """What stands at ``place``. Raises IndexError outside of the order."""
        return self.stretch(place, place + 1)[0]

    def stretch(self, start: int, stop: int) -> array[int]:
        """What stands at the places from ``start`` to before ``stop``."""
        if not 0 <= start <= stop <= self.count:
            raise IndexError(f"places {start} to {stop} of an order of {self.count}")
        half = (max(2, (self.count - 1).bit_length()) + 1) // 2
        keys = [mixed(mixed(self.seed & _MASK) ^ round) for round in range(ROUNDS)]
        found = array("q")
        for place in range(start, stop):
            value = _crossed(place, half, keys)
            while value >= self.count:  # at most two bits too many: four tries on average
                value = _crossed(value, half, keys)
            found.append(value)
        return found


def _crossed(value: int, half: int, keys: Sequence[int]) -> int:
    mask = (1 << half) - 1
    left, right = value >> half, value & mask
    for key in keys:
        # one multiplication mixes enough for a round; its upper bits depend on all lower ones
        mix = ((right ^ key) * 0xD6E8FEB86659FD93) & _MASK
        left, right = right, left ^ ((mix ^ (mix >> 32)) >> 7) & mask
    return left << half | right


def samples_at(seed: int, samples: int, start: int, stop: int) -> array[int]:
    """The samples at places ``start`` to ``stop`` of one epoch; place p of epoch e is e · samples + p.

    Each epoch deals all anew.

    >>> sorted(samples_at(3, 5, 10, 15))
    [0, 1, 2, 3, 4]
    """
    epoch, first = divmod(start, samples)
    order = Permutation(mixed(mixed(seed & _MASK) ^ epoch), samples)
    return order.stretch(first, first + stop - start)


@dataclass(frozen=True)
class Dealing:
    """Which patterns make which portion."""

    seed: int
    patterns: int
    portion: int
    """Patterns a portion; the last may have fewer."""

    def __post_init__(self) -> None:
        if self.patterns < 1 or self.portion < 1:
            raise ValueError(
                f"{self.patterns} patterns in portions of {self.portion}: both must be at least 1"
            )

    @property
    def portions(self) -> int:
        """How many portions there are."""
        return -(-self.patterns // self.portion)

    def samples(self, portion: int) -> int:
        """How many patterns the portion has."""
        if not 0 <= portion < self.portions:
            raise IndexError(f"portion {portion} of {self.portions}")
        return min(self.portion, self.patterns - portion * self.portion)

    def patterns_of(self, portion: int) -> array[int]:
        """The numbers of its patterns, in the order in which they are summed."""
        start = portion * self.portion
        return Permutation(self.seed, self.patterns).stretch(start, start + self.samples(portion))

    def drawn(self, cycle: int, fraction: float) -> tuple[int, ...]:
        """The portions of a cycle of iterations, chosen at random, ascending: at least ``fraction`` of all.

        All of them where ``fraction`` is 1. Raises ValueError unless it is above 0 and at most 1.
        """
        if not 0 < fraction <= 1:
            raise ValueError(f"a fraction of {fraction}; it must be above 0 and at most 1")
        if fraction == 1:
            return tuple(range(self.portions))
        order = Permutation(mixed(self.seed & _MASK) ^ cycle, self.portions)
        chosen, samples = [], 0
        for place in range(self.portions):
            if samples >= fraction * self.patterns:
                break
            chosen.append(order[place])
            samples += self.samples(chosen[-1])
        return tuple(sorted(chosen))

    def shuffled(self, cycle: int, portions: Sequence[int]) -> list[int]:
        """``portions`` in a random order of the cycle's own."""
        order = Permutation(mixed(self.seed & _MASK) ^ mixed(cycle), len(portions))
        return [portions[place] for place in order.stretch(0, len(portions))]


def words(portions: Sequence[int]) -> str:
    """Ascending portions as ranges.

    >>> words([0, 1, 2, 5, 7, 8])
    '0-2,5,7-8'
    """
    runs: list[list[int]] = []
    for portion in portions:
        if runs and portion == runs[-1][1] + 1:
            runs[-1][1] = portion
        else:
            runs.append([portion, portion])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def portions_of(text: str) -> tuple[int, ...]:
    """What `words` wrote. Raises ValueError for anything else.

    >>> portions_of("0-2,5")
    (0, 1, 2, 5)
    """
    found: list[int] = []
    for run in filter(None, text.split(",")):
        first, _, last = run.partition("-")
        found += range(int(first), int(last or first) + 1)
    if found != sorted(set(found)):
        raise ValueError(f"portions {text!r} do not ascend")
    return tuple(found)
