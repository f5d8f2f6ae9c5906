"""Results of commands for operators: sentences on standard output, also with -q."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.cli.command import cotswold

from cotswold.replication.runtime.host_settings import DISKS_FOLDER


class Operator:
    """A cluster that grants every request."""

    def declare_lost(self, server: str) -> str:
        return f"{server}.1"

    undrain = declare_lost

    def drain(self, server: str, within: float) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(server=server, left=0 if within > 1 else 2, why="no other server")

    def remove(self, run: str) -> None:
        assert run == "c83a"


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def operator(controllers: str, token: object) -> Iterator[Operator]:
        yield Operator()

    monkeypatch.setattr("cotswold.api.servers.cluster_admin.operator", operator)
    monkeypatch.setattr("cotswold.api.servers.cluster_admin.run_meant", lambda of, run: run)
    monkeypatch.setattr("cotswold.api.servers.backups.write_backup", lambda *words: "3 buckets\nin a")
    monkeypatch.setattr("cotswold.api.servers.backups.restore_backup", lambda *words: "now start the host")
    monkeypatch.setattr("cotswold.replication.metadata_recovery.recover", lambda *words: "2 runs")


@pytest.mark.parametrize(
    ("words", "result"),
    [
        ("drain a --lost", "a.1 is declared lost"),
        ("drain a --back", "a.1 is back in service: it receives copies once its process runs"),
        ("drain a", "a has no copies left: its host ends its process"),
        ("remove c83a", "deleted c83a from the cluster"),
        ("backup monday", "3 buckets in a"),
        ("restore monday", "now start the host"),
        ("recover --folder host", "recovered 2 runs; now start the hosts"),
    ],
)
def test_a_result_is_printed_also_if_output_is_quiet(
    words: str, result: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "host" / DISKS_FOLDER).mkdir(parents=True)
    for quiet in ((), ("-q",)):
        said = cotswold("cluster", *words.split(), *quiet)
        assert said.status == 0, said.err
        assert said.out.startswith(result) and said.out.count("\n") == 1 and said.err == ""


def test_a_drain_that_takes_longer_is_an_error() -> None:
    said = cotswold("cluster", "drain", "a", "--within", "0.5", "-q")
    assert said.status == 1 and said.out == ""
    assert said.error == "a still has 2 copies after 0.5 s: no other server"
