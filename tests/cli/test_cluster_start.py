"""What `cotswold cluster start` and `add` make of their words."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotswold.cli import cluster_start
from cotswold.cli.main import main
from cotswold.cluster.station import StationSettings


@pytest.mark.parametrize(("words", "way"), [([], "star"), (["--way", "chain"], "chain")])
@pytest.mark.parametrize("verb", [["start"], ["add", "--controllers", "127.0.0.1"]], ids=["start", "add"])
def test_copies_come_by_the_way_that_is_named(
    verb: list[str], words: list[str], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[StationSettings] = []

    def serve(settings: StationSettings, token_file: Path | None) -> int:
        served.append(settings)
        return 0

    monkeypatch.setattr(cluster_start, "_serve", serve)
    with pytest.raises(SystemExit, match="0"):
        main(["cluster", *verb, *words])
    assert [each.copying.way for each in served] == [way]


def test_a_way_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["cluster", "start", "--way", "ring"])
    assert "chain" in capsys.readouterr().err
