"""The token of a cluster is changed during a run: real processes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.replicas.test_replicated_servers import check_tallies
from tests.replicas.test_standalone_clusters import at
from tests.support.replicas.opened_replicas import Opener
from tests.support.replicas.opened_replicas import opened as opened
from tests.support.replication.standalone_cluster import standing

from cotswold.errors import MachineError
from cotswold.files import replace_file
from cotswold.host import ForkServer, Token
from cotswold.host.keyring import KeyringFile
from cotswold.replicas.replicas import Replicas
from cotswold.replication.client.admin import AdminClient
from cotswold.transport.token_rotation import FILE_VARIABLE

pytestmark = pytest.mark.soak


def write(path: Path, tokens: Sequence[Token]) -> None:
    replace_file(path, "".join(f"{each.text}\n" for each in tokens).encode())
    path.chmod(0o600)


def learn(replicas: Replicas, seconds: float) -> None:
    replicas.proceed(seconds)
    before, deadline = replicas.ledger.total.counted, time.monotonic() + 20
    while replicas.ledger.total.counted == before:
        assert time.monotonic() < deadline and not replicas.is_over, "it goes on"
        replicas.proceed(0.1)


def test_a_token_is_followed_by_another_while_a_run_learns(
    opened: Opener, tmp_path: Path, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, path = Token.new(), Token.new(), tmp_path / "token"
    write(path, [old])
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    with standing(tmp_path / "hosts", fork_server, KeyringFile(path)) as ((host,), place):
        processes = host.processes
        more = {**at(place), "epochs": 1000, "arguments": {"seconds": 0.02}}
        with opened(**more) as replicas:
            learn(replicas, 0.7)
            for tokens in ([old, new], [new, old], [new]):
                write(path, tokens)
                learn(replicas, 3.0)
            assert host.processes == processes, "nobody was started again"
            with AdminClient([place], new) as operator:
                assert len(operator.status().servers) == 3
            with AdminClient([place], old, wait_seconds=2.0) as operator, pytest.raises(MachineError):
                operator.status()
            assert not host.told("recovered"), "no bucket was lost by it"
            replicas.pause()
            assert replicas.ledger.total.torn == 0


def test_a_cluster_whose_runs_have_its_token_in_the_environment_is_used_as_before(
    opened: Opener, tmp_path: Path, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = Token.new()
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    monkeypatch.setenv("COTSWOLD_CLUSTER_TOKEN", token.text)
    with standing(tmp_path, fork_server, token) as (_, place), opened(**at(place)) as replicas:
        check_tallies(replicas)
