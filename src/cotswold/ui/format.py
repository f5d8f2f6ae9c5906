"""Numbers, durations and lists as text.

Knows: units, prefixes, digits. Does not know: runs, HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, isfinite, log10

_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def count(value: float) -> str:
    """Return an integer with thin spaces between thousands.

    >>> count(1234567)
    '1\\u202f234\\u202f567'
    """
    return f"{round(value):,}".replace(",", "\u202f")


def scaled(value: float, unit: str) -> str:
    """Return three significant figures with a decimal prefix: 2.5 GFLOP."""
    power = min(max(0, floor(log10(abs(value)) / 3)) if value else 0, len(_PREFIXES) - 1)
    return f"{three_figures(value / 1000**power)} {_PREFIXES[power]}{unit}"


def three_figures(value: float) -> str:
    """Return three significant figures, without an exponent if that is readable.

    >>> three_figures(0.0123), three_figures(8.17e35), three_figures(float("inf"))
    ('0.0123', '8.2e+35', 'inf')
    """
    if not isfinite(value) or abs(value) >= 1e15:
        return f"{value:.1e}"
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return count(value)
    return f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.1e}"


def duration(seconds: float) -> str:
    """Return seconds, minutes and seconds, or hours and minutes."""
    if seconds < 60:
        return f"{three_figures(seconds)}\u202fs"
    minutes, left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}\u202fmin {left}\u202fs"
    return f"{minutes // 60}\u202fh {minutes % 60}\u202fmin"


def percent(value: float, digits: int = 1) -> str:
    """Return a fraction in per cent."""
    return f"{100 * value:.{digits}f}\u202f%"


def listed(words: Sequence[str], most: int = 3) -> str:
    """Join names to a list.

    >>> listed(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    if len(words) > most:
        return f"{', '.join(words[:most])} and {len(words) - most} more"
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def seconds_in_words(seconds: float) -> str:
    """Format a duration.

    >>> seconds_in_words(0.31), seconds_in_words(75.2), seconds_in_words(7300)
    ('0.3 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def kinds_of(kind: object) -> str:
    """Return the plural of a kind of update.

    >>> kinds_of("gradient"), kinds_of("factors")
    ('gradients', 'factors')
    """
    return f"{kind}" if str(kind).endswith("s") else f"{kind}s"


def bytes_in_words(count: float) -> str:
    """Format a number of bytes.

    >>> bytes_in_words(800), bytes_in_words(2_500_000)
    ('800 B', '2.5 MB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def time_left(seconds: float | None) -> str:
    """Return the remaining time as text; empty if unknown."""
    return "" if seconds is None else f"{clock(seconds)} left"


def flop_rate(flops: float) -> str:
    """Return FLOPs per second as text, in MFLOP/s for small networks."""
    return f"{flops / 1e9:.1f} GFLOP/s" if flops >= 1e8 else f"{flops / 1e6:.1f} MFLOP/s"


def clock(seconds: float) -> str:
    """Return a duration as hours, minutes and seconds: 1:02:03."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def as_number(value: object) -> float:
    """Return a field of an event as a number; 0 if it is none."""
    return float(value) if isinstance(value, int | float) else 0.0
