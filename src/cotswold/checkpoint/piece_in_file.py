"""A piece that exists as a file before a checkpoint is saved.

Knows: a file that is never written again can be in two folders at once. Does not know: the writer.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from cotswold.checkpoint.piece_record import PieceRecord


@dataclass(frozen=True)
class SealedPiece:
    """A piece in an existing file, in the format of a checkpoint's pieces; the file must not change any more.

    Args:
        path: The file.
        record: The piece's record for the manifest; its file name is replaced.
    """

    path: Path
    record: PieceRecord

    def write(self, folder: Path, file_name: str) -> PieceRecord:
        """Hard-link the file into a folder, and sync it; copied only if the file system has no links.

        Args:
            folder: Folder of the checkpoint.
            file_name: Name of the link.

        Returns:
            The record for the manifest.
        """
        target = folder / file_name
        try:
            target.hardlink_to(self.path)
        except OSError:  # no links on this file system; copying reports any other error
            shutil.copyfile(self.path, target)
        file = os.open(target, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
        return replace(self.record, file=file_name)
