"""A controller binds servers' names to keys made by their supervisors."""

from __future__ import annotations

import pytest

from cotswold.replication.runtime.authorization import Authorization, digest_of
from cotswold.wire import COORDINATOR, Assigned, Heartbeat, ServerExited

SERVER, STATION = "server-a-0", "station-0f/a"
ADDRESS = "host 1 challenge - tcp://10.0.0.1:7000 hmac"


def here(key: str, server: str = SERVER) -> Heartbeat:
    return Heartbeat(server, "a", ADDRESS, 1, (), key=key)


@pytest.fixture
def entitled() -> Authorization:
    """Return the rules of a controller that started at 0 s and has received a server's heartbeat."""
    found = Authorization(0.0)
    assert found.rejection_reason(SERVER, here("own"), 1.0) == ""
    return found


@pytest.mark.parametrize("key", ["", "another"])
def test_whoever_has_the_token_and_not_the_key_can_end_no_server(entitled: Authorization, key: str) -> None:
    assert (
        entitled.rejection_reason(STATION, ServerExited(SERVER, "because I say so", key), 100.0)
        == "strangers"
    )
    assert (
        entitled.rejection_reason(STATION, ServerExited(SERVER, "was killed by SIGKILL", "own"), 100.0) == ""
    )


@pytest.mark.parametrize("key", ["", "another"])
def test_whoever_has_the_token_and_not_the_key_cannot_speak_for_a_server(
    entitled: Authorization, key: str
) -> None:
    assert entitled.rejection_reason(SERVER, here(key), 2.0) == "strangers"
    assert entitled.rejection_reason(SERVER, here("own"), 60.5) == "", "the true one is heard as before"
    assert entitled.rejection_reason(SERVER, here(key), 120.0) == "strangers"
    assert entitled.rejection_reason(SERVER, here(key), 121.0) == "", (
        "nobody has been heard under it for a minute"
    )


def test_an_end_that_cannot_be_checked_counts_once_every_living_server_had_time_to_speak() -> None:
    new = Authorization(10.0)
    ended = ServerExited(SERVER, "was killed by SIGKILL", "own")
    assert new.rejection_reason(STATION, ended, 10.5) == "early"
    assert new.rejection_reason(STATION, ended, 12.5) == ""
    assert new.rejection_reason("station-0f/b", ended, 12.5) == "strangers", "another host's"
    assert new.rejection_reason(SERVER, here("own"), 13.0) == ""
    assert new.rejection_reason(STATION, ServerExited(SERVER, "because I say so"), 13.0) == "strangers"


def test_of_a_server_without_a_key_its_coordinator_alone_says_that_it_has_ended() -> None:
    entitled = Authorization(0.0)
    assert entitled.rejection_reason(SERVER, here(""), 1.0) == ""
    assert entitled.rejection_reason(STATION, ServerExited(SERVER, "because I say so"), 9.0) == "strangers"
    assert entitled.rejection_reason(COORDINATOR, ServerExited(SERVER, "was killed by SIGKILL"), 9.0) == ""


def test_names_are_kept_within_a_bound_and_those_that_speak_are_kept(entitled: Authorization) -> None:
    for number in range(10_000):
        assert entitled.rejection_reason(f"server-b-{number}", here("x", f"server-b-{number}"), 2.0) == ""
        if number % 1000 == 0:
            assert entitled.rejection_reason(SERVER, here("own"), 2.0) == ""
    assert len(entitled._keys) == 1 << 12
    assert entitled.rejection_reason(SERVER, here("another"), 2.0) == "strangers"


def test_a_key_that_is_written_down_is_the_only_one_of_its_name() -> None:
    written = {SERVER: digest_of("own")}
    new = Authorization(0.0, lambda: written)
    assert new.rejection_reason(SERVER, here("another"), 1.0) == "strangers"
    assert (
        new.rejection_reason(STATION, ServerExited(SERVER, "because I say so", "another"), 9.0) == "strangers"
    )
    assert new.rejection_reason(STATION, ServerExited(SERVER, "was killed by SIGKILL", "own"), 1.0) == ""
    assert new.rejection_reason(SERVER, here("own"), 1.0) == ""
    assert new.rejection_reason(SERVER, here("another"), 100.0) == "strangers", "however long it was silent"


def test_a_key_that_is_written_down_replaces_one_that_was_heard_before() -> None:
    written: dict[str, str] = {}
    follower = Authorization(0.0, lambda: written)
    assert follower.rejection_reason(SERVER, here("of an impostor"), 1.0) == "" and not follower.key_of(
        SERVER
    )
    written[SERVER] = digest_of("own")
    assert follower.rejection_reason(SERVER, here("of an impostor"), 2.0) == "strangers"
    assert follower.rejection_reason(SERVER, here("own"), 2.0) == "" and follower.key_of(SERVER) == "own"


def test_a_server_says_its_key_on_each_connection_before_anything_else_is_heard_of_it() -> None:
    entitled = Authorization(0.0)
    said = Assigned("run/0000", 1, SERVER)
    assert entitled.rejection_reason(SERVER, said, 1.0) == "early"
    assert (
        entitled.rejection_reason(SERVER, here("own"), 1.0)
        == entitled.rejection_reason(SERVER, said, 1.0)
        == ""
    )
    entitled.on_lost(SERVER)
    assert entitled.rejection_reason(SERVER, said, 1.0) == "early"


def test_who_said_another_key_before_the_right_one_was_read_is_heard_no_more() -> None:
    written: dict[str, str] = {}
    follower = Authorization(0.0, lambda: written)
    said = Assigned("run/0000", 1, SERVER)
    assert (
        follower.rejection_reason(SERVER, here("of an impostor"), 1.0)
        == follower.rejection_reason(SERVER, said, 1.0)
        == ""
    )
    written[SERVER] = digest_of("own")  # it leads now, and has read the state
    assert follower.rejection_reason(SERVER, said, 2.0) == "early"
    assert (
        follower.rejection_reason(SERVER, here("own"), 2.0)
        == follower.rejection_reason(SERVER, said, 2.0)
        == ""
    )
    assert follower.rejection_reason(SERVER, here("of an impostor"), 3.0) == "strangers"
    assert follower.rejection_reason(SERVER, said, 3.0) == "early", "somebody else has the connection"
