"""benchmarks/data_servers.py: measurements, kept cells and bars."""

from __future__ import annotations

import json
from mmap import PAGESIZE
from pathlib import Path

import numpy as np
import pytest

import data_servers as script
from baselines.common import LoaderSettings, moved, transformed
from cotswold.data import Preparation, Store, open_source, prepare
from data_servers import data_servers
from lib.command import main
from lib.data_servers import subject
from lib.data_servers.cache import bound, hits
from lib.data_servers.kills import trained
from lib.data_servers.subject import ALONE, OURS, Subject
from lib.data_servers.summary import summary

TABLES = json.dumps(subject.MOVES)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Make 300 images of 12 x 10, in shards of 32."""
    folder = tmp_path_factory.mktemp("fed")
    np.save(folder / "p.npy", np.random.default_rng(1).integers(0, 255, (300, 12, 10), np.uint8))
    plain = Preparation((12, 10), colour="grey", per_image_standardise=False, whiten=False, dtype="uint8")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("cotswold.data.store.layout._SHARD_IMAGES_MAX", 32)
        prepare(open_source(folder / "p.npy"), folder / "store", plain, validation=0.0, jobs=1)
    return Store(folder / "store")


@pytest.fixture
def small(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Subject, "store", lambda self, stores: store)
    monkeypatch.setattr(subject, "IN_PROCESS", {each: subject.IN_PROCESS[each] for each in (OURS, ALONE)})
    monkeypatch.setattr(script, "IN_PROCESS", subject.IN_PROCESS)
    monkeypatch.setattr(script, "TRIED", {OURS: (1,), ALONE: (0,)})


@pytest.mark.soak
@pytest.mark.usefixtures("small")
def test_cells_are_kept_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--subject", "mnist", "--rounds", "1", "--warm-seconds", "0.1", "--seconds", "0.3"]
    places = ["--stores", str(tmp_path), "--out", str(tmp_path / "out")]
    for measured in (True, False):
        with pytest.raises(SystemExit) as left:
            main(data_servers, [*words, *places])
        assert left.value.code == 0
        printed = capsys.readouterr()
        assert "Ray Data is left out: no --baselines" in printed.err
        assert ("fed: mnist" in printed.err) == measured, "a finished cell is not measured again"
        assert "beyond the transforms alone" in printed.out
    found = json.loads((tmp_path / "out" / "data-servers.json").read_text())
    assert {row["who"] for row in found["summary"]["rows"]} == {OURS, ALONE}
    cell = found["cells"][f"fed: mnist: {OURS}: 0"]
    assert cell["samples"] > 0 and cell["processes"] >= 4 and cell["processor_seconds"] > 0
    assert "data servers" in (tmp_path / "out" / "data-servers.svg").read_text()


def test_a_subject_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(data_servers, ["--subject", "cats", "--out", str(tmp_path)])
    assert left.value.code == 2 and "--subject cats is unknown" in capsys.readouterr().err


@pytest.mark.soak
def test_no_sample_is_lost_or_twice_while_servers_are_killed(store: Store) -> None:
    found = trained(store, TABLES, 20, 0.02, 4.0, 1.5)
    assert found["killed"] and found["epochs"]
    assert (found["twice"], found["lost"], found["strange"]) == (0, 0, 0)
    assert found["samples"] == 300 * int(str(found["epochs"]))


def test_the_cache_is_measured_within_and_beyond_its_bound(store: Store) -> None:
    found = hits(store, 20, 1)
    assert found["bytes"] == 20 * 120 and found["hit_microseconds"] > 0  # type: ignore[operator]  # a number
    most = 5 * 32 * 120
    full = bound(store, 20, most)
    whole_pages = most // PAGESIZE * PAGESIZE
    assert full["cached_bytes_most"] == whole_pages and full["misses"] > 10  # type: ignore[operator]  # the same


def test_numpy_moves_images_as_kernels_do() -> None:
    """Without rotation, scaling and shift, both leave images unchanged."""
    given = np.random.default_rng(0).integers(0, 255, (3, 2, 9, 8), np.uint8)
    values = given.astype(np.float32) / np.float32(255)
    assert np.abs(moved(values, np.full((3, 4), 0.5, np.float32)) - values).max() < 1e-5
    asked = LoaderSettings("", 3, 0, 0.0, 0.0, tables="[]")
    assert np.abs(transformed(asked, given, np.random.default_rng(0)) - values).max() < 1e-6


def test_bars_are_judged_by_medians_round_by_round() -> None:
    def cell(who: str, rate: float) -> dict[str, object]:
        figures = {"samples_a_second": rate, "samples_a_core_second": rate, "memory_mib": 1.0, "waited": 0.01}
        return {"who": who, "workers": 1, "transform": "x", **figures}

    cells = {f"fed: a: {OURS}: {number}": cell(OURS, 100.0 / (number + 1)) for number in range(3)}
    cells |= {f"fed: a: {ALONE}: {number}": cell(ALONE, 105.0 / (number + 1)) for number in range(3)}
    cells |= {f"starving: a: {OURS}: 0": cell(OURS, 50.0) | {"waited": 0.2}}
    counts = {"waited": 0.0, "killed": 1, "samples": 9, "twice": 0, "lost": 0, "strange": 0}
    cells["killed: a: 0: 0"] = {"samples_a_second": 100.0, **counts}
    cells["killed: a: 20: 0"] = {"samples_a_second": 96.0, **counts}
    bars = summary(cells)["bars"]
    assert isinstance(bars, list)
    judged = {each["what"].partition(": ")[2]: (each["median"], each["met"]) for each in bars}
    assert judged["processor time beyond the transforms alone"] == (0.05, True)
    what = "waiting time of a trainer at 1/1.2 of the rate, including the time to take a batch"
    assert judged[what] == (0.2, False)
    assert judged["training rate with kills over without"] == (0.96, True)
    assert judged["duplicated, lost or invalid samples"] == (0.0, True)
