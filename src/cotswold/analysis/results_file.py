"""Result files of a run, each with a checksum.

Knows: how a result becomes JSON and is found to be damaged. Does not know: what a result is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from html import escape
from math import isfinite
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from cotswold.errors import MachineError, RunError
from cotswold.files.checksum import seal
from cotswold.files.durable import disk_errors, replace_file
from cotswold.files.safe_open import read_bytes
from cotswold.files.untrusted_json import BYTES_MAX, JsonObject, MalformedError, parse_object

T = TypeVar("T")
_CHECKSUM_FIELD = "crc32"


class ResultsFile(Generic[T]):
    """Reads and writes results of one dataclass; ``what`` names them in errors."""

    def __init__(self, kind: type[T], what: str) -> None:
        self._adapter: TypeAdapter[T] = TypeAdapter(kind)
        self._names = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # a dataclass
        self._what = what

    def to_json(self, result: T) -> str:
        """Return JSON text for `from_json`; raises RunError for a figure that is not finite."""
        # pydantic's JSON refuses folder names that are not valid text, which Python keeps as surrogates
        content = parse_object(json.dumps(_finite(self._adapter.dump_python(result, mode="json"))))
        text = json.dumps({_CHECKSUM_FIELD: _checksum(content), **content}, indent=1, ensure_ascii=False)
        self.from_json(text)
        return text.encode("utf-8", "backslashreplace").decode()  # JSON escapes a surrogate in the same way

    def from_json(self, text: str | bytes) -> T:
        """Return the result in JSON text; raises RunError for any other or damaged text."""
        try:
            content = parse_object(text)
            own = _checksum({name: value for name, value in content.items() if name != _CHECKSUM_FIELD})
            if content.pop(_CHECKSUM_FIELD, None) != own:
                raise MalformedError("its checksum is not its own")
            if unknown := content.keys() - self._names:
                raise MalformedError(f"it has an unknown field {min(unknown)!r}")
            return self._adapter.validate_python(content)
        except ValidationError as error:
            first = error.errors()[0]
            reason = f"{'.'.join(str(part) for part in first['loc']) or 'the file'}: {first['msg']}"
        except MalformedError as error:
            reason = str(error)
        raise RunError(f"not a valid {self._what} ({reason}); run cotswold evaluate again")

    def read(self, path: Path) -> T | None:
        """Return the result in a file, None if it does not exist. Raises RunError with the file's name."""
        try:
            return self.from_json(read_bytes(path, BYTES_MAX))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RunError(f"{path} cannot be read: {error.strerror}") from error
        except RunError as error:
            raise RunError(f"{path}: {error}") from None

    def write(self, path: Path, result: T) -> None:
        """Write the result atomically; a symbolic link at its path is replaced."""
        with disk_errors(path, MachineError):
            replace_file(path, self.to_json(result).encode())


def _finite(value: object) -> object:
    """Replace numbers that are not finite by None, because JSON lacks them."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def rename_damaged(path: Path) -> Path:
    """Rename a damaged file, and return its new path; raises MachineError if that fails."""
    aside = path.with_name(f"{path.name}.damaged")
    with disk_errors(path, MachineError):
        path.replace(aside)
    return aside


def _checksum(content: JsonObject) -> str:
    try:
        return seal(content)
    except ValueError as error:
        raise MalformedError("it has a figure that is not a number") from error


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows of text below a caption and headings."""
    headings = "".join(f"<th>{escape(each)}</th>" for each in head)
    lines = "".join("<tr>" + "".join(f"<td>{escape(each)}</td>" for each in row) + "</tr>" for row in rows)
    return (
        f"<table><caption>{escape(caption)}</caption><thead><tr>{headings}</tr></thead>"
        f"<tbody>{lines}</tbody></table>"
    )


def metric_lines(metrics: Mapping[str, float | None], shown: str) -> list[str]:
    """Return a line for each metric but ``shown``, which the text above has."""
    return [f"  {name}: {_figure(value)}" for name, value in metrics.items() if name != shown]


def metric_table(metrics: Mapping[str, float | None], shown: str) -> str:
    """Return a table in HTML of all metrics but ``shown``; empty without any."""
    rows = [[name, _figure(value)] for name, value in metrics.items() if name != shown]
    return html_table("Metrics", ["metric", "value"], rows) if rows else ""


def _figure(value: float | None) -> str:
    return "no value" if value is None else f"{value:.5g}"
