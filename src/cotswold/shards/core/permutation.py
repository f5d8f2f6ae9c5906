"""A keyed random permutation of samples, split into portions, without a table.

Knows: a seed, the numbers of samples and of samples per portion. Does not know: workers, the samples.

A Feistel network over the smallest sufficient even number of bits, with cycle walking (Black and Rogaway
2002): position i of the permutation depends on (seed, i) only. So each process can compute any portion of
millions of samples without the rest.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

ROUNDS = 6
_MASK = (1 << 64) - 1


def mix_bits(value: int) -> int:
    """Return 64 bits that each depend on every bit of ``value`` (the last steps of SplitMix64)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@dataclass(frozen=True)
class Permutation:
    """A random permutation of ``range(count)``.

    >>> sorted(Permutation(seed=3, count=5)[place] for place in range(5))
    [0, 1, 2, 3, 4]
    """

    seed: int
    count: int

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"count must be at least 0, got {self.count}")

    def __getitem__(self, position: int) -> int:
        """Return the element at ``position``. Raise IndexError outside of the permutation."""
        return self.stretch(position, position + 1)[0]

    def stretch(self, start: int, stop: int) -> array[int]:
        """Return the elements from ``start`` to before ``stop``."""
        if not 0 <= start <= stop <= self.count:
            raise IndexError(f"positions {start} to {stop} are outside of a permutation of {self.count}")
        half = (max(2, (self.count - 1).bit_length()) + 1) // 2
        keys = [mix_bits(mix_bits(self.seed & _MASK) ^ round) for round in range(ROUNDS)]
        found = array("q")
        for place in range(start, stop):
            value = _feistel(place, half, keys)
            while value >= self.count:  # at most two bits too many: four tries on average
                value = _feistel(value, half, keys)
            found.append(value)
        return found


def _feistel(value: int, half: int, keys: Sequence[int]) -> int:
    mask = (1 << half) - 1
    left, right = value >> half, value & mask
    for key in keys:
        # one multiplication mixes enough for a round; its upper bits depend on all lower ones
        mix = ((right ^ key) * 0xD6E8FEB86659FD93) & _MASK
        left, right = right, left ^ ((mix ^ (mix >> 32)) >> 7) & mask
    return left << half | right


def samples_at(seed: int, samples: int, start: int, stop: int) -> array[int]:
    """Return the samples at positions ``start`` to ``stop`` of one epoch; position p of epoch e is e ·
    samples + p.

    Each epoch has its own permutation.

    >>> sorted(samples_at(3, 5, 10, 15))
    [0, 1, 2, 3, 4]
    """
    epoch, first = divmod(start, samples)
    order = Permutation(mix_bits(mix_bits(seed & _MASK) ^ epoch), samples)
    return order.stretch(first, first + stop - start)


@dataclass(frozen=True)
class PortionPermutation:
    """Assignment of samples to portions."""

    seed: int
    samples: int
    portion: int
    """Samples per portion; the last may have fewer."""

    def __post_init__(self) -> None:
        if self.samples < 1 or self.portion < 1:
            raise ValueError(f"samples and portion must be at least 1, got {self.samples} and {self.portion}")

    @property
    def portions(self) -> int:
        """Number of portions."""
        return -(-self.samples // self.portion)

    def size_of(self, portion: int) -> int:
        """Return the number of samples in the portion."""
        if not 0 <= portion < self.portions:
            raise IndexError(f"portion {portion} is out of range: {self.portions} portions")
        return min(self.portion, self.samples - portion * self.portion)

    def samples_of(self, portion: int) -> array[int]:
        """Return the numbers of the portion's samples, in the order of summation."""
        start = portion * self.portion
        return Permutation(self.seed, self.samples).stretch(start, start + self.size_of(portion))

    def draw(self, cycle: int, fraction: float) -> tuple[int, ...]:
        """Return the portions of a cycle of iterations, chosen at random, ascending: at least ``fraction`` of
        all samples.

        ``fraction`` 1 selects all. Raise ValueError unless it is above 0 and at most 1.
        """
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction must be above 0 and at most 1, got {fraction}")
        if fraction == 1:
            return tuple(range(self.portions))
        order = Permutation(mix_bits(self.seed & _MASK) ^ cycle, self.portions)
        chosen, samples = [], 0
        for place in range(self.portions):
            if samples >= fraction * self.samples:
                break
            chosen.append(order[place])
            samples += self.size_of(chosen[-1])
        return tuple(sorted(chosen))

    def shuffled(self, cycle: int, portions: Sequence[int]) -> list[int]:
        """Return ``portions`` in a random order that depends on the cycle."""
        order = Permutation(mix_bits(self.seed & _MASK) ^ mix_bits(cycle), len(portions))
        return [portions[place] for place in order.stretch(0, len(portions))]


def format_ranges(portions: Sequence[int]) -> str:
    """Return ascending portions as text with ranges.

    >>> format_ranges([0, 1, 2, 5, 7, 8])
    '0-2,5,7-8'
    """
    runs: list[list[int]] = []
    for portion in portions:
        if runs and portion == runs[-1][1] + 1:
            runs[-1][1] = portion
        else:
            runs.append([portion, portion])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def parse_ranges(text: str) -> tuple[int, ...]:
    """Return the portions in a text of `format_ranges`. Raise ValueError for other text.

    >>> parse_ranges("0-2,5")
    (0, 1, 2, 5)
    """
    found: list[int] = []
    for run in filter(None, text.split(",")):
        first, _, last = run.partition("-")
        found += range(int(first), int(last or first) + 1)
    if found != sorted(set(found)):
        raise ValueError(f"portions must be ascending, got {text!r}")
    return tuple(found)
