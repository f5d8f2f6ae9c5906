"""Messages of a host at its end, and the file with a cluster's secret."""

from __future__ import annotations

import shlex
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from tests.ports import free_ports
from tests.support.replication.standalone_cluster import settings_of

from cotswold.api.servers.cluster_admin import operator
from cotswold.api.servers.cluster_host import (
    _undrained_note,
    cluster_tokens,
    create_tokens,
    few_servers,
    low_disk_warning,
    next_commands,
)
from cotswold.errors import UserError
from cotswold.host import Token
from cotswold.replication.client.standalone_cluster import controller_name
from cotswold.replication.runtime.drain_progress import DrainProgress
from cotswold.transport import Endpoint, Message
from cotswold.transport.token_rotation import FILE_VARIABLE, TokenRotation, tokens_of_cluster
from cotswold.wire import CONTROLLERS, StatusRequest


@pytest.mark.parametrize(
    ("found", "has_disks", "sentence"),
    [
        (DrainProgress(0), True, "all data were handed over"),
        (DrainProgress(1), True, "1 copy was not handed over; the servers' state is on their disks"),
        (DrainProgress(3), True, "3 copies were not handed over; the servers' state is on their disks"),
        (DrainProgress(3), False, "3 copies were not handed over; their state is lost"),
        (DrainProgress(0, ("server-a-0",)), True, "no controller confirmed the handover of server-a-0"),
    ],
)
def test_what_is_left_is_said_and_where_it_is_not_known_that(
    found: DrainProgress, has_disks: bool, sentence: str
) -> None:
    assert _undrained_note(found, has_disks=has_disks).startswith(sentence)


@pytest.mark.parametrize(
    ("servers", "free", "sentence", "wanted"),
    [
        (2, 999_000_000, "999.0 MB are free on the disk of", "2 servers should have 1.0 GB, more"),
        (2, 1_000_000_000, "", ""),
        (5, 1_400_000_000, "1.4 GB are free", "5 servers should have 1.5 GB (300.0 MB each), more"),
        (5, 1_500_000_000, "", ""),
    ],
)
def test_a_host_with_little_room_on_its_disk_is_warned_with_the_limit_that_applies(
    tmp_path: Path, servers: int, free: int, sentence: str, wanted: str
) -> None:
    settings = settings_of(tmp_path, 7400, servers=servers)
    said = low_disk_warning(settings, free)
    assert said.startswith(sentence) and wanted in said and bool(said) is bool(sentence)
    assert not low_disk_warning(replace(settings, flush_seconds=None), 1)


def test_the_one_host_of_a_cluster_says_that_it_has_fewer_servers_than_copies(tmp_path: Path) -> None:
    one = settings_of(tmp_path, 7400, servers=2)
    copies = one.control.replication_factor
    assert few_servers(replace(one, control=replace(one.control, replication_factor=3))).startswith(
        "with 2 servers each part of the parameters has 2 copies instead of 3"
    )
    assert not few_servers(replace(one, servers=copies))
    assert not few_servers(replace(one, servers=1, has_controller=False)), "others have some"


def test_what_is_typed_next_parses_and_names_the_controllers_and_the_token(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, 7411)
    path = tmp_path / "my token"
    for token, file in ((Token.new(), None), (create_tokens(path), path)):
        look, train = next_commands(settings, token).split("; ")
        words = shlex.split(look.partition(": ")[2])
        assert words[:5] == ["cotswold", "cluster", "status", "--controllers", "127.0.0.1:7411"]
        assert words[5:] == ([] if file is None else ["--token-file", str(file)])
        words = shlex.split(train.partition(": ")[2])
        assert (words[0] == f"COTSWOLD_CLUSTER_TOKEN_FILE={file}") is (file is not None)
        *_, setting = words
        assert tomllib.loads(setting) == {"cluster": {"controllers": "127.0.0.1:7411"}}


def test_only_who_starts_a_cluster_makes_its_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    for use in (
        lambda: cluster_tokens(path),
        lambda: TokenRotation.of_file(str(path)),
        lambda: tokens_of_cluster({FILE_VARIABLE: str(path)}),
    ):
        with pytest.raises(UserError, match="does not exist"):
            use()
    assert not path.exists()
    made = create_tokens(path)
    assert path.exists() and not hasattr(made, "text")
    cluster_tokens(path)


def test_who_operates_a_cluster_has_all_tokens_of_the_file_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, path = Token.new(), Token.new(), tmp_path / "token"
    path.touch(0o600)
    path.write_text(f"{new.text}\n{old.text}\n")
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    with (
        free_ports(1) as (port,),
        Endpoint(
            old, controller_name("127.0.0.1", port), host="127.0.0.1", ports=(port,), mode="curve"
        ) as controller,
        operator(f"127.0.0.1:{port}") as asking,
    ):
        deadline, event = time.monotonic() + 10, None
        while not isinstance(event, Message):
            assert time.monotonic() < deadline, "its controllers have the old token yet"
            asking._messenger.send(CONTROLLERS, StatusRequest())
            asking._messenger.receive(0.05)
            event = controller.receive(0.05)
