"""Arguments of `cotswold cluster start` and `add`."""

from __future__ import annotations

import pytest
from tests.support.cli.command import cotswold

from cotswold.cli.cluster import host as cluster_start
from cotswold.replication.runtime.host_settings import HostSettings


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[HostSettings]:
    found: list[HostSettings] = []

    def serve(settings: HostSettings, tokens: object) -> int:
        found.append(settings)
        return 0

    monkeypatch.setattr(cluster_start, "_serve", serve)
    monkeypatch.setenv("COTSWOLD_CLUSTER_TOKEN", "c" * 64)
    return found


def test_controllers_and_servers_are_told_with_how_few_copies_updates_wait(
    started: list[HostSettings],
) -> None:
    assert cotswold("cluster", "start", "--replication-factor", 3, "--replication-factor-min", 2).status == 0
    (settings,) = started
    assert (
        settings.control.replication_factor,
        settings.control.replication_factor_min,
        settings.copying.min_members,
    ) == (3, 2, 2)


def test_more_copies_at_least_than_there_are_to_be_are_refused() -> None:
    said = cotswold("cluster", "start", "--replication-factor", 2, "--replication-factor-min", 3)
    assert said.status == 2 and "replication_factor_min must be 1 to 2, got 3" in said.error


@pytest.mark.parametrize(("words", "way"), [([], "star"), (["--topology", "chain"], "chain")])
@pytest.mark.parametrize("verb", [["start"], ["add", "--controllers", "127.0.0.1"]], ids=["start", "add"])
def test_copies_come_by_the_way_that_is_named(
    verb: list[str], words: list[str], way: str, started: list[HostSettings]
) -> None:
    assert cotswold("cluster", *verb, *words).status == 0
    assert [each.copying.topology for each in started] == [way]


def test_a_way_that_is_none_is_refused() -> None:
    said = cotswold("cluster", "start", "--topology", "ring")
    assert said.status == 2 and "chain" in said.err
