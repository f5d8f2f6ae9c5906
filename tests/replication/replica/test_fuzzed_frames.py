"""Servers, controllers and endpoints receive invalid messages; `benchmarks/fuzz_frames.py` runs longer.

Planted mistakes show that the search finds them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from tests.conftest import FUZZ

import fuzz_frames
from cotswold.replication.replica.bucket_state import BucketState
from cotswold.replication.replica.server import ReplicaServer
from cotswold.replication.run_description import Description
from cotswold.replication.runtime import authorization as entitled
from cotswold.replication.runtime import server_process as keeper
from cotswold.wire import LeaseGrant
from lib.fuzz.controller import ControllerTarget
from lib.fuzz.endpoint import EndpointTarget
from lib.fuzz.parameter_server import ServerTarget
from lib.fuzz.search import hunt, read, replay, write

TARGETS = fuzz_frames.TARGETS
SEED = 1
Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("kind", TARGETS)
def test_whatever_is_said_nobody_breaks_and_it_is_counted(kind: str) -> None:
    found = hunt(TARGETS[kind], kind, SEED, 2.0 * FUZZ, messages=300)
    assert not found.broken, found.broken
    assert found.messages >= 300 and found.refused["strangers"] and found.refused["malformed"]


def _leased_by_anybody(patch: pytest.MonkeyPatch) -> None:
    right = keeper.ReplicaServerProcess._on_message

    def hear(self: Any, sender: str, message: Any) -> None:
        if isinstance(message, LeaseGrant):
            self._process(sender, message)
        else:
            right(self, sender, message)

    patch.setattr(keeper.ReplicaServerProcess, "_on_message", hear)


def _any_prepare(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BucketState, "can_apply", lambda *_: True)


def _any_description(patch: pytest.MonkeyPatch) -> None:
    right = Description.of

    def of(text: str) -> Description:
        if re.search(r"\d{9}", text):  # as many buckets would take all memory there is
            return right(text)
        return Description(**json.loads(text))

    patch.setattr(Description, "of", of)


def _any_settings(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Description, "_check_updates", lambda *_: None)


def _any_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(entitled, "_NAME_BYTES", 1024)


def _any_length(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(entitled, "_DESCRIPTION_BYTES", 1 << 30)


def _everybody_spoke(patch: pytest.MonkeyPatch) -> None:
    right = ReplicaServer._copy_with

    def copy_with(self: Any, sender: str, bucket: str, now: float) -> Any:
        self._activity.last_received[sender] = now
        return right(self, sender, bucket, now)

    patch.setattr(ReplicaServer, "_copy_with", copy_with)


def _anybody_is_heard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(entitled.Authorization, "rejection_reason", lambda *_: "")


def _only_values(patch: pytest.MonkeyPatch) -> None:
    right = msgpack.unpackb

    def unpackb(data: Any, **more: Any) -> Any:
        try:
            return right(data, **more)
        except TypeError as error:
            raise KeyError("no such key") from error

    patch.setattr(msgpack, "unpackb", unpackb)


@pytest.mark.parametrize(
    ("kind", "mistake"),
    [
        ("keeper", _leased_by_anybody),
        ("keeper", _any_prepare),
        ("keeper", _any_description),
        ("keeper", _any_settings),
        ("keeper", _everybody_spoke),
        ("controller", _any_name),
        ("controller", _any_length),
        ("controller", _anybody_is_heard),
        ("endpoint", _only_values),
    ],
)
def test_a_mistake_is_found_and_what_found_it_can_be_told_again(
    kind: str, mistake: Patch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mistake(monkeypatch)
    found = hunt(TARGETS[kind], kind, SEED, 20.0)
    assert found.broken
    path = tmp_path / "found"
    write(path, kind, "seed", found)
    known, said = read(path)
    assert known == kind and repr(said) == repr(found.said)  # as text, where NaN equals itself
    if kind != "endpoint":  # whose frames name sockets of that life
        assert replay(TARGETS[kind], said)
        monkeypatch.undo()
        assert not replay(TARGETS[kind], said)


def test_the_command_says_what_was_refused_and_how_much_memory_it_took(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert fuzz_frames.hunts(["keeper"], 0.0, SEED, tmp_path) == 0
    said = capsys.readouterr().out
    assert "keeper: 1 targets, 1000 messages; refused:" in said and "strangers" in said and "MiB" in said
    assert {ServerTarget, ControllerTarget, EndpointTarget} == set(TARGETS.values())
