"""What a host says when it ends, and who makes the file with the secret of a cluster."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.ports import free_ports

from cotswold.api.operating import operator
from cotswold.api.standing import _drained, cluster_tokens, made_tokens
from cotswold.cluster.rotating import FILE_VARIABLE, Rotating, tokens_of_cluster
from cotswold.cluster.standing import name_at
from cotswold.cluster.station import Drained
from cotswold.cluster.transport import Endpoint, Message
from cotswold.errors import UserError
from cotswold.host import Token
from cotswold.server.messages import CONTROLLERS, Look


@pytest.mark.parametrize(
    ("found", "has_disks", "sentence"),
    [
        (Drained(0), True, "nothing is left here"),
        (Drained(3), True, "3 copies were not taken over by others; what servers have is written"),
        (Drained(3), False, "3 copies were not taken over by others; it ends with these servers"),
        (Drained(0, ("server-a-0",)), True, "no controller has said what others took over of server-a-0"),
    ],
)
def test_what_is_left_is_said_and_where_it_is_not_known_that(
    found: Drained, has_disks: bool, sentence: str
) -> None:
    assert _drained(found, has_disks=has_disks).startswith(sentence)


def test_only_who_starts_a_cluster_makes_its_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    for use in (
        lambda: cluster_tokens(path),
        lambda: Rotating.of_file(str(path)),
        lambda: tokens_of_cluster({FILE_VARIABLE: str(path)}),
    ):
        with pytest.raises(UserError, match="is not there"):
            use()
    assert not path.exists()
    made = made_tokens(path)
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
            old, name_at("127.0.0.1", port), host="127.0.0.1", ports=(port,), mode="curve"
        ) as controller,
        operator(f"127.0.0.1:{port}") as asking,
    ):
        deadline, event = time.monotonic() + 10, None
        while not isinstance(event, Message):
            assert time.monotonic() < deadline, "its controllers have the old token yet"
            asking._post.send(CONTROLLERS, Look())
            asking._post.receive(0.05)
            event = controller.receive(0.05)
