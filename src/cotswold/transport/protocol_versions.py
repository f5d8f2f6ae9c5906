"""Protocol versions, and the agreement of two processes on one.

Knows: version numbers. Does not know: the differences between versions.

Every frame carries a version. A caller sends the newest and the oldest version that it speaks; the two
processes use the newest common one. Messages that carry this never change their form: a `Hello`, which may
get more fields, and the refusal of a version.

Within a version messages only grow (`wire.codec`): new fields with defaults at the end, and new messages.
Any other change is a new version. So servers can be upgraded one at a time, from release to release of a
version. A process with an unsupported version is refused with a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.transport.frames import REFUSAL, head, pack, unpack

PROTOCOL = 1
"""The newest version that this process speaks. Increment it for every change of a frame, and for every
change of a message other than new fields with defaults at its end."""
OLDEST = 1
"""The oldest supported version."""
_MAX_VERSION = 255


@dataclass(frozen=True)
class Versions:
    """The range of versions that a process speaks."""

    newest: int
    oldest: int

    def __post_init__(self) -> None:
        assert 0 <= self.oldest <= self.newest <= _MAX_VERSION, f"{self} must fit into a byte"

    @classmethod
    def ours(cls) -> Versions:
        """The versions of this process."""
        return cls(PROTOCOL, OLDEST)

    @property
    def packed(self) -> bytes:
        """The message that refuses another version."""
        return head(REFUSAL, self.newest) + pack(self.oldest)

    @classmethod
    def read(cls, version: int, rest: bytes | memoryview) -> Versions:
        """Decode a refusal from its version and the rest of its frame; raise MalformedFrameError."""
        return cls.from_hello(version, unpack(rest))

    @classmethod
    def from_hello(cls, newest: int, oldest: object) -> Versions:
        """The versions that another process states; only its newest if its oldest makes no sense."""
        return cls(newest, oldest if type(oldest) is int and 0 <= oldest <= newest else newest)

    def supports(self, version: int) -> bool:
        """True if a version is in the range."""
        return self.oldest <= version <= self.newest

    def agreed(self, other: Versions) -> int | None:
        """The newest common version; None if there is none."""
        found = min(self.newest, other.newest)
        return found if found >= max(self.oldest, other.oldest) else None

    def refusal(self, other: Versions) -> str:
        """The reason why this process and the other cannot communicate."""
        if self.agreed(other) is not None:
            return "it sent a message in another version of Cotswold's protocol than the agreed one"
        older = "this process" if other.newest > self.newest else "it"
        return (
            f"it speaks version {other.newest} of Cotswold's protocol, and this process {self.newest}; "
            f"upgrade {older}"
        )
