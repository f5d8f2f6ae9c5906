"""Why all ranks must stop, in the words that all of them say.

Knows: sentences, their form in the store. Does not know: who finds out, and how.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class Verdict:
    """Why all must stop, and whose doing it is: a rank's, or nobody's.

    ``silent``: the rank has not said so itself; it may stand still.
    """

    rank: int | None
    sentence: str
    silent: bool

    def dumps(self) -> str:
        """As text for the store."""
        return json.dumps(astuple(self))

    @classmethod
    def loads(cls, text: str) -> Verdict:
        """From the store's text."""
        return cls(*json.loads(text))


def minutes(seconds: float) -> str:
    """A long time in words: "30 min", or "45 s" below two minutes."""
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.3g} min"
