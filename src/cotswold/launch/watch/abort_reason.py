"""The reason why all ranks must stop, in the sentence that all of them print.

Knows: sentences, their form in the store. Does not know: how the reason is detected.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class AbortReason:
    """The reason why all ranks must stop, and the rank that caused it (None: no rank).

    If ``silent``, the rank has not reported the reason itself; its process may be suspended.
    """

    rank: int | None
    sentence: str
    silent: bool

    def dumps(self) -> str:
        """Serialise for the store."""
        return json.dumps(astuple(self))

    @classmethod
    def loads(cls, text: str) -> AbortReason:
        """Parse the store's text."""
        return cls(*json.loads(text))


def format_duration(seconds: float) -> str:
    """Format a duration: "30 min", or "45 s" below two minutes."""
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.3g} min"
