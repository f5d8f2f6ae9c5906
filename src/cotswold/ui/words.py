"""Numbers as people read them.

Knows: units, prefixes, digits. Does not know: runs, HTML.
"""

from __future__ import annotations

from math import floor, isfinite, log10

_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def count(value: float) -> str:
    """A whole number with thin spaces between thousands.

    >>> count(1234567)
    '1\\u202f234\\u202f567'
    """
    return f"{round(value):,}".replace(",", "\u202f")


def scaled(value: float, unit: str) -> str:
    """Three significant figures with a decimal prefix: 2.5 GFLOP."""
    power = min(max(0, floor(log10(abs(value)) / 3)) if value else 0, len(_PREFIXES) - 1)
    return f"{plain(value / 1000**power)} {_PREFIXES[power]}{unit}"


def plain(value: float) -> str:
    """Three significant figures, without an exponent if that is readable.

    >>> plain(0.0123), plain(8.17e35), plain(float("inf"))
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
    """A duration: seconds, minutes and seconds, or hours and minutes."""
    if seconds < 60:
        return f"{plain(seconds)}\u202fs"
    minutes, left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}\u202fmin {left}\u202fs"
    return f"{minutes // 60}\u202fh {minutes % 60}\u202fmin"


def percent(value: float, digits: int = 1) -> str:
    """A fraction as per cent."""
    return f"{100 * value:.{digits}f}\u202f%"
