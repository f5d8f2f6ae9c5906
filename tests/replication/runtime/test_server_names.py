"""Names of servers and disks of a host, and the message without a leading controller."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cotswold.errors import UserError
from cotswold.replication.client.standalone_cluster import addresses_by_name, controllers_at, parse_controller
from cotswold.replication.runtime import server_names as naming
from cotswold.replication.runtime.leader_probe import LeaderProbe
from cotswold.replication.runtime.server_names import ServerNames
from cotswold.transport import LossCause, Lost


@pytest.fixture(autouse=True)
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))


def names(folder: Path, servers: int = 2, *, is_new: bool = False) -> ServerNames:
    folder.mkdir(exist_ok=True)
    return ServerNames(folder, "server-a", servers, is_new=is_new)


def test_the_first_servers_of_a_new_cluster_have_short_names_at_once(tmp_path: Path) -> None:
    found = names(tmp_path / "one", is_new=True)
    assert found.disks == ("server-a-0", "server-a-1") and not found.lacking
    assert [found.next_name("server-a-0") for _ in range(3)] == ["server-a-0", "server-a-0.1", "server-a-0.2"]
    again = names(tmp_path / "one")
    assert again.disks == ("server-a-0",) and again.next_name("server-a-0") == "server-a-0.3"


def test_a_host_whose_folder_knows_nothing_takes_names_that_nobody_has(tmp_path: Path) -> None:
    found = names(tmp_path / "one")
    assert not found.disks and found.lacking == 2
    assert found.choose(["server-a-0.7", "server-b-1", "server-a-10"]) == ("server-a-1", "server-a-2")
    for disk in found.disks:
        found.next_name(disk)
    assert names(tmp_path / "one").disks == found.disks
    more = names(tmp_path / "one", 4)
    assert more.disks == found.disks
    assert more.choose(["server-a-1", "server-a-2"]) == ("server-a-0", "server-a-3")


def test_two_hosts_of_one_name_that_begin_at_once_take_different_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = names(tmp_path / "one"), names(tmp_path / "other")
    assert one.choose([]) == ("server-a-0", "server-a-1")
    assert other.choose([]) == ("server-a-2", "server-a-3")
    monkeypatch.setattr(naming, "_RECENT_SECONDS", 0.0)
    assert names(tmp_path / "third").choose([]) == ("server-a-0", "server-a-1"), "long ago"


def test_names_that_a_restored_backup_has_are_gone_on_from(tmp_path: Path) -> None:
    (tmp_path / naming.FILE).write_text(json.dumps({"server-a-0": "server-a-0"}))
    found = ServerNames(tmp_path, "server-a", 1, is_new=False)
    assert found.disks == ("server-a-0",) and found.next_name("server-a-0") == "server-a-0.1"


PLACES = addresses_by_name(["10.0.0.1", "10.0.0.2:99"])


def test_who_waits_for_a_controller_says_so_after_two_seconds_and_then_seldom() -> None:
    reaching = LeaderProbe(PLACES, [], 100.0)
    said = []
    for step in range(600):
        now = 100.0 + 0.1 * step
        reaching.should_request(now)
        if found := reaching.problem_text(now):
            said.append((round(now - 100), found))
    assert [when for when, _ in said] == [2, 10, 50]
    assert said[0][1].startswith("no controller has answered for 2 s, retrying: from 10.0.0.1:7400, 10")
    assert reaching.on_reply(160.0) == "reached a leading controller after 60 s"
    quiet = [0.1 * step for step in range(1, 52) if reaching.problem_text(160.0 + 0.1 * step)]
    assert quiet == [pytest.approx(5.0, abs=0.11)], "a change of the leader takes a while"


def test_a_host_says_where_its_token_is_refused_and_where_nobody_listens() -> None:
    reaching, (first, second) = LeaderProbe(PLACES, [], 100.0), PLACES
    reaching.on_lost(Lost(first, "refused", LossCause.REFUSED))
    reaching.on_lost(Lost(second, "not there", LossCause.ABSENT))
    reaching.on_lost(Lost("server-a-0", "refused", LossCause.REFUSED))
    assert not any(reaching.problem_text(100.0 + 0.1 * step) for step in range(1, 20))
    said = reaching.problem_text(102.5)
    assert "at 10.0.0.1:7400 a process refuses this token" in said
    assert (
        "at 10.0.0.2:99 no process listens" in said
        and "server-a" not in said
        and "no reply arrives" not in said
    )


def test_a_host_says_of_controllers_that_do_not_answer_why_where_another_follows() -> None:
    reaching, (first, second) = LeaderProbe(PLACES, [], 100.0), PLACES
    reaching.on_follower(first)
    reaching.on_follower(second)
    reaching.on_lost(Lost(second, "refused", LossCause.REFUSED))
    assert not any(reaching.problem_text(100.0 + 0.1 * step) for step in range(1, 20))
    said = reaching.problem_text(102.5)
    assert said.startswith("1 of the controllers at 10.0.0.1:7400, 10.0.0.2:99 answers")
    assert "retrying; at 10.0.0.2:99 a process refuses this token" in said


def test_a_host_that_stood_still_blames_nobody_for_it() -> None:
    reaching = LeaderProbe({"controller-a": "a"}, [], 100.0)
    reaching.on_reply(100.5)
    assert not reaching.problem_text(101.0) and not reaching.problem_text(120.0), "it heard nobody meanwhile"
    later = [step for step in range(1, 60) if reaching.problem_text(120.0 + 0.1 * step)]
    assert later and later[0] > 30


def test_controllers_that_answer_and_do_not_lead_point_at_etcd() -> None:
    reaching = LeaderProbe({"controller-a": "a", "controller-b": "b"}, ["e:2379"], 100.0)
    assert (
        reaching.should_request(100.0)
        and not reaching.should_request(100.1)
        and reaching.should_request(100.4)
    )
    reaching.on_follower("controller-a")
    assert not any(reaching.problem_text(100.0 + 0.1 * step) for step in range(1, 20))
    assert reaching.problem_text(102.5) == (
        "1 of the controllers at a, b answers, and none has led for 2 s: check that most members of the "
        "etcd at e:2379 are up; retrying; from b no reply arrives: the process there is "
        "stopped, or the network blocks it"
    )
    assert reaching.on_reply(103.0) and not reaching.on_reply(103.5), "it is said once"


@pytest.mark.parametrize("text", ["10.0.0.1:7400:8", "a b", "", ":7400", "host:", "http://a", "a/b:3"])
def test_what_names_no_controller_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is no controller's address; name HOST:PORT"):
        parse_controller(text)


def test_places_of_controllers_are_hosts_with_ports_or_without() -> None:
    assert parse_controller("[::1]:7401") == ("::1", 7401) and parse_controller("::1")[0] == "::1"
    assert parse_controller("a-b.c_d") == ("a-b.c_d", 7400)


def test_a_host_that_nobody_knows_is_refused_at_once() -> None:
    with pytest.raises(UserError, match=r"the host 'nobody\.invalid' of a controller is not found"):
        controllers_at(["127.0.0.1", "nobody.invalid:7400"])
