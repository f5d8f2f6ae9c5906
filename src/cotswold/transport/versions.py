"""Which version of the protocol two processes speak with each other.

Knows: numbers of versions. Does not know: what is different between them.

Every frame bears a version. A caller says the newest and the oldest that it speaks; the two settle on the
newest that both do. What says so keeps its form for ever: a `Hello`, whose further fields may grow, and the
refusal of one.

Within a version messages only grow (`wire.codec`): fields with defaults are appended, and messages are
added. A change of any other kind is another version. So servers are upgraded one by one from release to
release of a version; a process of a version that is not spoken any more is refused with a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.transport.frames import REFUSAL, head, pack, unpack

PROTOCOL = 1
"""The newest version, in which this process would speak. One more with every change of a frame, or of a
message in another way than by fields at its end that have defaults."""
OLDEST = 1
"""The oldest that is still spoken."""
_MOST = 255


@dataclass(frozen=True)
class Versions:
    """All that a process speaks."""

    newest: int
    oldest: int

    def __post_init__(self) -> None:
        assert 0 <= self.oldest <= self.newest <= _MOST, f"{self} fit into a byte"

    @classmethod
    def ours(cls) -> Versions:
        """Those of this process."""
        return cls(PROTOCOL, OLDEST)

    @property
    def packed(self) -> bytes:
        """The message that refuses another version."""
        return head(REFUSAL, self.newest) + pack(self.oldest)

    @classmethod
    def read(cls, version: int, rest: bytes | memoryview) -> Versions:
        """What `packed` said, after it was parted; raises MalformedError."""
        return cls.said(version, unpack(rest))

    @classmethod
    def said(cls, newest: int, oldest: object) -> Versions:
        """As another process says it; where that makes no sense, its newest alone."""
        return cls(newest, oldest if type(oldest) is int and 0 <= oldest <= newest else newest)

    def speaks(self, version: int) -> bool:
        """Whether this is one of them."""
        return self.oldest <= version <= self.newest

    def settled(self, other: Versions) -> int | None:
        """The newest that both speak; None where there is none."""
        found = min(self.newest, other.newest)
        return found if found >= max(self.oldest, other.oldest) else None

    def refusal(self, other: Versions) -> str:
        """Why this process and the other cannot speak with each other."""
        if self.settled(other) is not None:
            return "it was sent a message in another version of Cotswold's protocol than was settled on"
        older = "this process" if other.newest > self.newest else "it"
        return (
            f"it speaks version {other.newest} of Cotswold's protocol, and this process {self.newest}; "
            f"upgrade {older}"
        )
