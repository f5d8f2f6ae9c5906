"""Messages of other releases: earlier ones are read, and appended fields are skipped."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgpack
import pytest
from tests.support.wire.recording import CLASSES, fields_of, parts_of, sample

from cotswold.transport.protocol_versions import OLDEST, PROTOCOL
from cotswold.wire.codec import decode, encode

_FILES = sorted((Path(__file__).parent / "recorded").glob("protocol-*.json"))
_RECORDED = {int(each.stem.partition("-")[2]): json.loads(each.read_text()) for each in _FILES}
_NAMES = {each.__name__: each for each in set[type]().union(*map(parts_of, CLASSES))}


def assert_alike(value: Any, written: Any, fields: Mapping[str, list[str]], where: str) -> None:
    """Check that the read message equals the written one, except for fields appended since."""
    if dataclasses.is_dataclass(value):
        name = type(value).__name__
        assert written[0] == name, where
        for field, each in zip(fields[name], written[1:], strict=True):
            assert_alike(getattr(value, field), each, fields, f"{where}.{field}")
    elif isinstance(value, tuple | frozenset) and isinstance(written, list):
        for one, each in zip(sorted(value) if isinstance(value, frozenset) else value, written, strict=True):
            assert_alike(one, each, fields, where)
    elif isinstance(value, Mapping):
        assert list(value) == list(written), where
        for key in value:
            assert_alike(value[key], written[key], fields, where)
    elif not isinstance(written, dict):  # the place of a buffer
        assert value == written, where


def with_more(written: Any) -> Any:
    """Return the message of a later release: every class has two more fields."""
    if isinstance(written, list):
        inner = [with_more(each) for each in written]
        is_class = bool(written) and isinstance(written[0], str) and written[0] in _NAMES
        return [*inner, {"more": [1]}, "more"] if is_class else inner
    if isinstance(written, dict):
        return {key: with_more(each) for key, each in written.items()}
    return written


@pytest.mark.parametrize("version", _RECORDED)
def test_what_an_older_process_or_disk_has_written_is_read(version: int) -> None:
    recorded = _RECORDED[version]
    for name, each in recorded["messages"].items():
        header = msgpack.unpackb(bytes.fromhex(each["header"]))
        (message,) = decode(header, [bytes.fromhex(one) for one in each["buffers"]])
        assert_alike(message, header["message"], recorded["fields"], name)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_fields_that_a_later_release_appends_are_skipped(kind: type) -> None:
    message = sample(kind)
    header, buffers = encode(message)
    later = with_more(msgpack.unpackb(header))
    assert repr(decode(later, buffers)) == repr(decode(msgpack.unpackb(header), buffers))


@pytest.mark.parametrize("version", range(OLDEST, PROTOCOL + 1))
def test_messages_only_grow_within_a_version_of_the_protocol(version: int) -> None:
    for name, fields in _RECORDED[version]["fields"].items():
        today = dataclasses.fields(_NAMES[name])
        assert fields_of(_NAMES[name])[: len(fields)] == fields, (
            f"{name}: fields are appended; any other change is another version of the protocol"
        )
        for each in today[len(fields) :]:
            has_default = each.default is not dataclasses.MISSING
            assert has_default, f"{name}.{each.name} has no default, which an older process cannot say"


def test_the_version_that_is_spoken_is_recorded() -> None:
    assert PROTOCOL in _RECORDED, "record it: python -m tests.support.wire.recording FILE"
