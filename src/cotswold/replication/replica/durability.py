"""Durability of one bucket replica: how much of it is on its server's disk.

Knows: the indexes that are durable and that are being written, each with its term; the data found on the
disk. Does not know: the contents of the bucket, when it is written, files.

    event                              state of the disk
    the replica changes                behind
    `submitted`                        being written
    `persisted`                        durable; in this term too, if submitted in this term
    `rejected`                         behind: everything that is not durable is submitted again
    a new term                         behind: of two disks, the one of the later term is more recent
    `clear`                            its data are invalid
"""

from __future__ import annotations

from cotswold.replication.replica.follower_progress import NO_INDEX
from cotswold.replication.replica.saved_bucket import SavedBucket


class Durability:
    """Durability of one replica."""

    def __init__(self) -> None:
        self.index = self.submitted_index = NO_INDEX
        """Indexes up to which everything is durable, and up to which everything is durable or being
        written."""
        self.index_this_term = NO_INDEX
        """Index up to which everything is durable of what was submitted in this term. Data of an earlier
        term may not be the most recent of all disks."""
        self._is_submitted_this_term = True
        """True once anything was submitted in this term."""
        self.found_state: SavedBucket | None = None
        """Data found on the disk, if more recent than memory, until a group decides about them."""
        self.is_read = False
        """True once the disk was read."""

    def is_behind(self, index: int) -> bool:
        """True if a replica that is complete up to ``index`` has something to submit."""
        return index > (max(self.submitted_index, 0) if self._is_submitted_this_term else 0)

    def submitted(self, index: int) -> None:
        """Record that everything up to an index is being written."""
        self.submitted_index, self._is_submitted_this_term = index, True

    def rejected(self) -> None:
        """Record that the disk rejected what was submitted."""
        self.submitted_index, self._is_submitted_this_term = self.index, False

    def persisted(self, index: int, *, is_of_this_term: bool) -> None:
        """Record that everything up to an index is durable."""
        self.index = max(self.index, index)
        if is_of_this_term:
            self.index_this_term = max(self.index_this_term, index)

    def mark_dirty(self) -> None:
        """Mark the replica as not submitted in this term, so that its term reaches the disk."""
        self._is_submitted_this_term = False

    def begin_term(self) -> None:
        """Begin a term."""
        self.index_this_term = NO_INDEX
        self.mark_dirty()

    def restore(self, index: int) -> None:
        """Begin with the data on the disk, of another term."""
        self.index = self.submitted_index = index

    def clear(self) -> None:
        """Invalidate the data on the disk."""
        self.index = self.submitted_index = self.index_this_term = NO_INDEX

    def set_found(self, found: SavedBucket | None) -> None:
        """Record the data found on the disk."""
        self.found_state, self.is_read = found, True

    def clear_found(self) -> None:
        """Forget the data found on the disk."""
        self.found_state, self.is_read = None, False
