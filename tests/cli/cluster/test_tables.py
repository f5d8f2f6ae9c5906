"""Output of `cotswold cluster status` and `explain` for made-up clusters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.support.cli.command import cotswold

from cotswold.api.servers.cluster_admin import Explained, Overview, to_plain_values
from cotswold.cli.cluster.tables import explaining, lines_of, table
from cotswold.errors import UserError
from cotswold.replication.client.admin import AdminClient
from cotswold.ui.screen import Screen
from cotswold.wire import BucketStatus, ClusterEvent, ReplicaServerStatus, RunStatus, StatusReply
from cotswold.wire.lifecycle import BucketReplicaStatus, NetworkTraffic, ServerReport

RUN = "c83a0b833eac6e20"
ROADS = (NetworkTraffic("updates", "somewhere", 5, 7),)


def seen(name: str, state: str = "living", seconds: float = 0.1) -> ReplicaServerStatus:
    return ReplicaServerStatus(name, f"host {name}", f"at {name}", state, seconds, 4, 2)


def copy(
    role: str = "primary", behind: tuple[tuple[str, int], ...] = (), **more: object
) -> BucketReplicaStatus:
    told: dict[str, object] = {"queued_bytes": 0, "is_blocked": False, **more}
    return BucketReplicaStatus(f"{RUN}/0003", role, 5, 0, 120, 118, 90, behind, **told)  # type: ignore[arg-type]  # as they are


def reported(name: str, *copies: BucketReplicaStatus, has_disk: bool = True) -> ServerReport:
    return ServerReport(name, copies, 2_500_000, 0.7, has_disk, (("strangers", 3),), ROADS, 4711)


def looked(**more: object) -> StatusReply:
    told: dict[str, object] = {
        "controller": "controller-a",
        "epoch": 3,
        "replication_factor": 3,
        "least": 1,
        "servers": (seen("a"), seen("b", "gone", 12.0), seen("c", "ended", -1)),
        "runs": (RunStatus(RUN, 64, 2, 1),),
        "short": (BucketStatus(f"{RUN}/0003", 5, ("a",), ("b",), "no other server can take it"),),
        "moving": 2,
        "events": (ClusterEvent(100.0, "joined", "a", "a has joined, on host a", "", ()),),
    }
    return StatusReply(**{**told, **more})  # type: ignore[arg-type]  # as they are


def test_each_server_and_run_has_a_line_and_what_is_unknown_is_said_to_be() -> None:
    lines = lines_of(Overview(looked(), {"a": reported("a", copy(behind=(("b", 4),)))}))
    (a,) = [line for line in lines if line.startswith("a ")]
    (b,) = [line for line in lines if line.startswith("b ")]
    assert a.split() == [
        "a",
        "host",
        "a",
        "4711",
        "living",
        "0.1",
        "s",
        "ago",
        "2",
        "4",
        "4",
        "2.5",
        "MB",
        "0.7",
        "s",
        "3",
    ]
    assert "gone" in b and b.split()[-4:] == ["?"] * 4
    assert any(line.split() == [RUN, "?", "64", "2", "1"] for line in lines)
    assert "1 bucket is moving" in lines_of(Overview(looked(moving=1), {}))
    assert "2 buckets are moving" in lines and any("no other server can take it" in each for each in lines)
    assert lines[-1].split(maxsplit=2) == ["2", "min", "a has joined, on host a"]


def test_what_the_controller_refused_has_a_line_where_there_is_any() -> None:
    assert "refused" not in "".join(lines_of(Overview(looked(), {}))[:2])
    _, said, *_ = lines_of(Overview(looked(refused=(("malformed", 2), ("oversized", 1))), {}))
    assert said == "refused messages: 2 that are malformed, 1 that are too long"
    _, said, *_ = lines_of(Overview(looked(refused=(("strangers", 7),)), {}))
    assert said.endswith("7 from callers without the token, or without the key of the named server")


def test_runs_have_the_names_of_their_recipes_and_the_leader_its_process() -> None:
    runs = (RunStatus(RUN, 64, 2, 1, "digits\x1b[2J"),)
    lines = lines_of(Overview(looked(process=815, runs=runs), {}))
    assert lines[0].startswith("controller-a leads the controllers (process 815); 3 copies of")
    assert any(line.split() == [RUN, r"digits\x1b[2J", "64", "2", "1"] for line in lines)


def happened(count: int) -> tuple[ClusterEvent, ...]:
    return tuple(ClusterEvent(1.0, "joined", "a", f"event {number}", "", ()) for number in range(count))


def test_a_narrow_screen_leaves_out_the_least_important_columns_and_names_them() -> None:
    found = Overview(looked(), {"a": reported("a", copy(behind=(("b", 4),)))})
    whole = lines_of(found)
    narrow = lines_of(found, screen=Screen(None, 80))
    assert max(map(len, whole)) > 80 >= max(map(len, narrow))
    (said,) = (line for line in narrow if line.startswith("left out for 80 columns: refused"))
    heads = next(line for line in narrow if line.startswith("server "))
    for name in said.removesuffix("; --json has all").partition(": ")[2].split(", "):
        assert name not in heads
    assert "copies" in heads and "state" in heads and not any("left out" in line for line in whole)


def test_as_many_of_the_last_events_are_shown_as_are_asked_for() -> None:
    found = Overview(looked(events=happened(100)), {})
    assert next(line for line in lines_of(found) if "event" in line).endswith("event 80")
    assert [line.split()[-1] for line in lines_of(found, 3) if "event" in line] == ["97", "98", "99"]
    assert len([line for line in lines_of(found, 500) if "event" in line]) == 100
    assert not any("event" in line for line in lines_of(found, 0))


@pytest.mark.parametrize("verb", [["status"], ["explain", "1"]], ids=["status", "explain"])
def test_fewer_events_than_none_are_refused_before_anybody_is_asked(verb: list[str]) -> None:
    said = cotswold("cluster", *verb, "--events", -1)
    assert said.status == 2 and said.error.startswith("--events must be 0 or more, got -1")


def test_a_screen_that_is_short_shows_the_last_events_and_all_else() -> None:
    found = Overview(looked(events=happened(100)), {})
    whole = len(lines_of(found, 0))
    shown = lines_of(found, 20, Screen(whole + 4))
    assert len(shown) == whole + 4 and shown[-1].endswith("event 99") and shown[-3].endswith("event 97")
    assert lines_of(found, 20, Screen(whole)) == lines_of(found, 20, Screen(3)) == lines_of(found, 0)


def test_lines_that_are_longer_than_a_row_take_several() -> None:
    found = Overview(looked(events=happened(100)), {})
    columns = max(map(len, lines_of(found, 0))) // 2
    lines = lines_of(found, 0, Screen(None, columns))  # some columns are left out
    wrapped = sum(-(-len(each) // columns) or 1 for each in lines)
    assert wrapped > len(lines)
    assert len(lines_of(found, 20, Screen(wrapped + 4, columns))) == len(lines) + 4
    assert lines_of(found, 20, Screen(wrapped + 1, columns)) == lines
    assert lines_of(found, 20, Screen()) == lines_of(found, 20), "nobody says how large it is"


def test_buckets_that_lack_copies_for_one_reason_are_one_line() -> None:
    few = [
        BucketStatus(f"{RUN}/{number:04}", 5, ("a",), (), "2 servers are available") for number in range(63)
    ]
    other = BucketStatus(f"{RUN}/0099", 6, ("a", "b"), (), "no other server can take it")
    short = (*few, other)
    lines = lines_of(Overview(looked(short=short, runs=(RunStatus(RUN, 64, 64, 0),)), {}))
    assert f"63 buckets of {RUN}: 2 servers are available" in lines
    assert f"{RUN}/0099, term 6: a, b; no other server can take it" in lines
    assert sum("2 servers are available" in line for line in lines) == 1
    lines = lines_of(Overview(looked(short=short, runs=(RunStatus(RUN, 900, 800, 0),)), {}))
    assert f"at least 63 buckets of {RUN}: 2 servers are available" in lines, "a controller names 100 at most"


def test_reasons_for_which_there_is_no_room_are_counted() -> None:
    short = tuple(
        BucketStatus(f"{RUN}/{number:04}", 5, ("a",), (), f"reason {number}") for number in range(7)
    )
    lines = lines_of(Overview(looked(short=short), {}))
    assert "and 2 more reasons in cotswold cluster status --json" in lines


def test_an_empty_cluster_says_so() -> None:
    lines = lines_of(Overview(looked(servers=(), runs=(), short=(), moving=0, events=()), {}))
    assert "no server is running yet" in lines and "the cluster has no run" in lines


def test_servers_that_are_no_more_and_have_nothing_are_one_line() -> None:
    dead = tuple(ReplicaServerStatus(f"dead-{number}", "", "", "ended", -1, 0, 0) for number in range(5))
    lines = lines_of(Overview(looked(servers=(seen("a"), *dead)), {}))
    (line,) = [each for each in lines if "dead-" in each]
    assert line == "dead-0, dead-1, dead-2 and 2 more are not running any more, and have no copies"
    holds = ReplicaServerStatus("holds", "", "", "ended", -1, 3, 0)
    (line,) = [each for each in lines_of(Overview(looked(servers=(holds,)), {})) if "holds" in each]
    assert line.split()[:5] == ["holds", "?", "?", "ended", "-"]


def test_a_server_without_a_disk_has_no_window() -> None:
    lines = lines_of(Overview(looked(), {"a": reported("a", has_disk=False)}))
    assert any("no disk" in line for line in lines)


def test_a_bucket_is_explained_with_what_it_waits_for() -> None:
    copies = {"a": copy(behind=(("b", 4),), queued_bytes=2000, is_blocked=True), "b": copy("secondary")}
    servers = {name: seen(name) for name in "ab"}
    found = Explained(
        f"{RUN}/0003", 5, 2, "a", ("b",), ("d",), copies, servers, 3, 3, "the cluster is full", ()
    )
    lines = explaining(found)
    assert lines[0] == f"{RUN}/0003, term 5, incarnation 2"
    assert any(line.split()[:2] == ["a", "primary"] for line in lines)
    assert any("does not answer" in line for line in lines if line.startswith("d "))
    assert "b is 4 behind" in lines and "2.0 kB of updates wait for other copies" in lines
    assert "pushes wait: the bucket has 2 of at least 3 copies" in lines
    assert lines[-1] == "the bucket has 2 of 3 copies: the cluster is full"
    event = ClusterEvent(3.0, "elected", "a", "bucket 3: b ended; secondary a took over", RUN, (("a", 1),))
    assert explaining(replace(found, events=(event,)))[-1].endswith(event.sentence)


def test_addresses_are_host_and_port_in_json() -> None:
    text = "0f/1 77 challenge ipc:///tmp/socket tcp://10.0.0.1:30001 curve"
    server = replace(seen("a"), address=text)
    network = NetworkTraffic("updates", text, 5, 7)
    report = replace(reported("a"), networks=(network,))
    told = json.loads(json.dumps(to_plain_values(Overview(looked(servers=(server,)), {"a": report}))))
    assert told["status"]["servers"][0]["address"] == "10.0.0.1:30001"
    assert told["reports"]["a"]["networks"] == [
        {"network": "updates", "address": "10.0.0.1:30001", "sent_bytes": 5, "received_bytes": 7}
    ]


def test_columns_are_as_wide_as_they_must_be() -> None:
    assert table(("a", "bb"), [("ccc", "d")]) == ["a    bb", "ccc  d"]


NAMES = ("c83a0b83/0003", "c83a0b83/0016", "d01f7a22/0016")


def test_buckets_are_named_if_none_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def operator_of(*_: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(groups=lambda: dict.fromkeys(reversed(NAMES)))

    monkeypatch.setattr("cotswold.cli.cluster.admin.operator_of", operator_of)
    assert cotswold("cluster", "explain").out.splitlines() == [*NAMES]
    assert json.loads(cotswold("cluster", "explain", "--json").out)["buckets"] == [*NAMES]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("0", "no bucket '0'; the cluster has c83a0b83/0003, c83a0b83/0016, d01f7a22/0016"),
        ("16", "'16' may be any of 2 buckets; name one as RUN/NUMBER, .*: c83a0b83/0016, d01f7a22/0016"),
    ],
)
def test_a_name_of_no_bucket_or_of_several_says_which_there_are(
    monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.setattr(AdminClient, "groups", lambda _: dict.fromkeys(NAMES))
    with pytest.raises(UserError, match=said):
        AdminClient.__new__(AdminClient).bucket(name)
