"""A piece that is in a file before a checkpoint wants it.

Knows: that a file which nobody writes to again can be in two folders at once. Does not know: who wrote it.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from cotswold.checkpoint.piece_record import PieceRecord


@dataclass(frozen=True)
class SealedPiece:
    """A piece in a file of the piece's format; whoever gives it to a checkpoint never writes to it again.

    ``record`` is what the manifest will say of it, but for the file's name.
    """

    path: Path
    record: PieceRecord

    def write(self, folder: Path, file_name: str) -> PieceRecord:
        """Give the file a second name in a folder, and sync it; nothing is copied where links are known."""
        target = folder / file_name
        try:
            target.hardlink_to(self.path)
        except OSError:  # a file system without links; what else is wrong the copy will tell
            shutil.copyfile(self.path, target)
        file = os.open(target, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
        return replace(self.record, file=file_name)
