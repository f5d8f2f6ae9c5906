"""Metadata in etcd, with real members on loopback."""

from __future__ import annotations

import itertools
import json
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from pathlib import Path

import pytest
from tests.support.replication.etcd_members import Members, members
from tests.support.replication.metadata_clients import Place
from tests.support.replication.metadata_contract import StateContract

from cotswold.errors import ClusterError, MachineError, StoreError
from cotswold.files.untrusted_json import JsonObject
from cotswold.replication.metadata import Etcd, EtcdStore, OutcomeUnknownError
from cotswold.replication.metadata.etcd_http import RANGE, Gateway
from cotswold.testing import stopped

_GOES_ON_SECONDS = 15
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    """Yield one member shared by the tests, each with its own prefix."""
    with members(tmp_path_factory.mktemp("etcd"), 1) as found:
        yield found


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Members]:
    with members(tmp_path, 3) as found:
        yield found


@pytest.fixture
def prefix() -> str:
    return f"test {next(_NUMBERS)}/"


class TestEtcd(StateContract):
    @pytest.fixture
    def place(self, one: Members, prefix: str) -> Place:
        return ("etcd", prefix, *one.endpoints)

    TIMES = 1000


def posted(members: Members, path: str, question: Mapping[str, object]) -> int:
    """Return the status of a direct request, without the tested client."""
    connection = HTTPConnection(members.endpoints[0], timeout=10)
    connection.request("POST", path, json.dumps(question))
    status = connection.getresponse().status
    connection.close()
    return status


def test_clusters_that_share_an_etcd_do_not_see_each_other(one: Members, prefix: str) -> None:
    with (
        EtcdStore(Etcd(one.endpoints, prefix=prefix + "a/")) as first,
        EtcdStore(Etcd(one.endpoints, prefix=prefix + "b/")) as second,
        EtcdStore(Etcd(one.endpoints, prefix=prefix)) as both,
    ):
        assert first.transact([], [("key", "1")]) and second.transact([("key", None)], [("key", "2")])
        assert (first.read(""), second.read("")) == ({"key": "1"}, {"key": "2"})
        assert both.read("") == {"a/key": "1", "b/key": "2"}


def test_without_a_prefix_every_key_is_read(one: Members, prefix: str) -> None:
    with EtcdStore(Etcd(one.endpoints)) as state:
        assert state.transact([], [(prefix + "key", "1")])
        assert state.read("")[prefix + "key"] == "1"


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_pages_are_of_one_moment_though_keys_change_between_them(
    one: Members, prefix: str, is_forgotten: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(state: EtcdStore, value: str) -> None:
        for at in range(0, 600, 60):
            state.transact([], [(f"{key:03}", value) for key in range(at, at + 60)])

    ask, count, changed = Gateway.request, 0, [False]

    def changing(self: Gateway, path: str, question: Mapping[str, object], *, can_repeat: bool) -> JsonObject:
        nonlocal count
        count += path == RANGE
        if path == RANGE and count == 2 and not changed[0]:
            changed[0] = True
            with EtcdStore(Etcd(one.endpoints, prefix=prefix)) as other:
                put(other, "new")
            if is_forgotten:
                now = int(ask(self, RANGE, {"key": "AA=="}, can_repeat=True)["header"]["revision"])  # type: ignore[index]  # of etcd's form
                assert posted(one, "/v3/kv/compaction", {"revision": now}) == 200
        return ask(self, path, question, can_repeat=can_repeat)

    with EtcdStore(Etcd(one.endpoints, prefix=prefix)) as state:
        put(state, "old")
        monkeypatch.setattr(Gateway, "request", changing)
        found = state.read("")
    assert len(found) == 600 and changed[0]
    assert set(found.values()) == {"new" if is_forgotten else "old"}


def test_what_is_not_text_is_told(one: Members, prefix: str) -> None:
    key, value = (b64encode(each).decode() for each in (f"{prefix}key".encode(), b"\xff"))
    assert posted(one, "/v3/kv/put", {"key": key, "value": value}) == 200
    with (
        EtcdStore(Etcd(one.endpoints, prefix=prefix)) as state,
        pytest.raises(StoreError, match="has invalid text; check whether another program writes below"),
    ):
        state.read("")


def test_a_member_of_another_cluster_is_told_before_anything_is_asked_of_it(
    one: Members, prefix: str, tmp_path: Path
) -> None:
    with members(tmp_path, 1) as other:
        with EtcdStore(Etcd((*other.endpoints, *one.endpoints), prefix=prefix)) as state:
            assert state.transact([], [("a", "1")])
            other.kill(0)
            with pytest.raises(MachineError, match=r"is of another cluster than .*; name members of one"):
                state.transact([], [("a", "1")])
        with EtcdStore(Etcd(one.endpoints, prefix=prefix)) as state:
            assert state.read("") == {}


def put_at_last(state: EtcdStore, key: str) -> float:
    """Return the seconds until a key could be put; unknown outcomes are read, as callers do."""
    began = time.monotonic()
    while time.monotonic() < began + _GOES_ON_SECONDS:
        try:
            if state.transact([(key, None)], [(key, "1")]) or state.read(key):
                return time.monotonic() - began
        except MachineError:
            pass
    raise AssertionError("etcd does not go on")


@pytest.mark.soak
def test_with_one_of_three_members_killed_it_goes_on_and_with_two_it_says_so_in_time(
    three: Members,
) -> None:
    with EtcdStore(Etcd(three.endpoints, timeout_seconds=1.0)) as state:
        put_at_last(state, "before")
        three.kill(0)
        put_at_last(state, "after")
        assert state.read("") == {"after": "1", "before": "1"}
        three.kill(1)
        for use in (lambda: state.read(""), lambda: state.transact([], [("late", "1")])):
            began = time.monotonic()
            with pytest.raises(MachineError, match="etcd"):
                use()
            assert time.monotonic() - began < 3 * 1.0 + 1


@pytest.mark.soak
def test_a_member_that_stands_still_is_passed_over(three: Members) -> None:
    with EtcdStore(Etcd(three.endpoints, timeout_seconds=1.0)) as state:
        put_at_last(state, "a")
        with stopped(three.processes[0].pid):
            with pytest.raises(OutcomeUnknownError, match="did not answer in time; whether it is done shows"):
                state.transact([], [("a", "2")])
            put_at_last(state, "b")
            assert state.read("b") == {"b": "1"}
            with EtcdStore(Etcd(three.endpoints, timeout_seconds=1.0)) as other:  # never greeted: no doubt
                assert other.transact([("b", "1")], [("b", "2")])


@pytest.mark.parametrize("endpoint", ["", "host", "host:0x", "host:70000", ":2379", "http://host:1", "a@b:1"])
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(ClusterError, match="is not an endpoint of etcd; name HOST:PORT"):
        Etcd((endpoint,))


def test_no_endpoints_are_refused() -> None:
    with pytest.raises(ClusterError, match="etcd has no endpoint"):
        Etcd(())
