"""Identity of a run, and overrides that it remembers between resumes: `run.json`.

Knows: the file's fields and its format. Does not know: its readers, which overrides are remembered.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cotswold.errors import MachineError
from cotswold.files import MalformedError, create_file, read_object, replace_file, take
from cotswold.recipe import FORMAT, format_of

NAME = "run.json"
_BYTES_MAX = 1 << 16
_IDENTITY = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Record:
    """Identity of a run, as in its checkpoints, and remembered fields of its recipe."""

    identity: str
    remembered: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def new(cls) -> Record:
        """Return the record of a new run, with a random identity."""
        return cls(secrets.token_hex(8))

    @classmethod
    def read(cls, folder: Path) -> Record | None:
        """Return the record in a run's directory; None if there is none.

        Raises MachineError if it cannot be read, FormatError if a newer version wrote it.
        """
        path = folder / NAME
        try:
            found = read_object(path, bytes_max=_BYTES_MAX)
            format_of(found, str(path))
            identity, remembered = take(found, "id", str), take(found, "remembered", dict)
            texts = all(isinstance(each, str) for each in remembered.values())
            if not (_IDENTITY.fullmatch(identity) and texts):
                raise MalformedError("is not a record of a run")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise MachineError(f"{path} cannot be read: {error.strerror}") from error
        except MalformedError as error:
            raise MachineError(
                f"{path}, which identifies the run of the checkpoints, {error}; "
                "copy it again from where the run was trained"
            ) from error
        return cls(identity, remembered)

    def create(self, folder: Path) -> None:
        """Write the record, unless one exists."""
        try:
            create_file(folder / NAME, self._text())
        except FileExistsError:
            return

    def replace(self, folder: Path) -> None:
        """Write the record, in place of an existing one."""
        replace_file(folder / NAME, self._text())

    def _text(self) -> bytes:
        content = {"format": FORMAT, "id": self.identity, "remembered": dict(self.remembered)}
        return (json.dumps(content, indent=1) + "\n").encode()
