"""How far one copy of a bucket is on its server's disk.

Knows: indexes that the disk has and that are on the way there, in which term; what was found there. Does not
know: what is in the bucket, when anything is written, files.

    what happens                       what is on the disk next
    the copy is different              it is behind
    `giving` it                        on the way
    `taken`                            on the disk; in this term too, if it was given in this term
    `refused`                          behind: all that the disk has not is to be given again
    another term                       behind: of two disks that of the later term has more
    `nothing`                          whatever is there does not count
"""

from __future__ import annotations

from cotswold.replication.replica.follower_progress import NOTHING
from cotswold.replication.replica.saved_bucket import Saved


class OnDisk:
    """That of a copy."""

    def __init__(self) -> None:
        self.index = self.given = NOTHING
        """To which index it is on the disk, and is on the way there."""
        self.this_term = NOTHING
        """To which it is there, of what was given in this term: what was before may not be the newest of any
        disk."""
        self._is_given_again = True
        """Whether anything was given in this term."""
        self.found: Saved | None = None
        """What the disk has, once that was read, if that is more than what is in memory, until a group says
        what becomes of it."""
        self.is_read = False
        """Whether that was read."""

    def is_behind(self, index: int) -> bool:
        """Whether of a copy with everything to an index something was not given yet."""
        return index > (max(self.given, 0) if self._is_given_again else 0)

    def giving(self, index: int) -> None:
        """Everything to an index is on the way."""
        self.given, self._is_given_again = index, True

    def refused(self) -> None:
        """What was given is not on its way any more."""
        self.given, self._is_given_again = self.index, False

    def taken(self, index: int, *, is_of_this_term: bool) -> None:
        """The disk has everything to an index."""
        self.index = max(self.index, index)
        if is_of_this_term:
            self.this_term = max(self.this_term, index)

    def again(self) -> None:
        """It is to be given once more, if only to say so."""
        self._is_given_again = False

    def another_term(self) -> None:
        """A term begins."""
        self.this_term = NOTHING
        self.again()

    def was(self, index: int) -> None:
        """The copy begins with what is there, of another term."""
        self.index = self.given = index

    def nothing(self) -> None:
        """Whatever is there does not count."""
        self.index = self.given = self.this_term = NOTHING

    def read(self, found: Saved | None) -> None:
        """This was found there."""
        self.found, self.is_read = found, True

    def unread(self) -> None:
        """What was found is not asked for any more."""
        self.found, self.is_read = None, False
