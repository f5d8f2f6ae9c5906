"""Describe an error to the other ranks.

Knows: how errors of exchanges and of memory look. Does not know: where the text is sent.
"""

from __future__ import annotations

from torch.distributed import DistError

from cotswold.errors import CotswoldError

_LENGTH = 300
_BROKEN = ("gloo", "no message passed", "connection closed by peer", "connection reset", "broken pipe")
"""Parts of error messages of exchanges whose other rank is lost."""
_NO_MEMORY = ("can't allocate memory", "cannot allocate memory", "out of memory")


def describe_error(error: BaseException) -> str:
    """Describe an error in one line."""
    text = " ".join(str(error).split())[:_LENGTH]
    if isinstance(error, MemoryError) or any(word in text.lower() for word in _NO_MEMORY):
        return f"it ran out of memory ({text or type(error).__name__})"
    if isinstance(error, CotswoldError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def is_peer_lost(error: BaseException | None) -> bool:
    """True if this error, or one that caused it, is a broken exchange with another rank."""
    while error is not None:
        text = str(error).lower()
        if isinstance(error, DistError):  # the store is lost or does not answer
            return True
        if isinstance(error, (RuntimeError, OSError)) and any(word in text for word in _BROKEN):
            return True
        error = error.__cause__ or error.__context__
    return False
