"""`cotswold verify` finds and names every damage to a run or a store, and changes nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Desk
from tests.support.cli.command import cotswold

from cotswold.checkpoint import CheckpointManager
from cotswold.run import RunDirectory
from cotswold.run.verify import verify_run


@pytest.fixture
def run(desk: Desk, tmp_path: Path) -> Path:
    shutil.copytree(desk.stacks, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def store(desk: Desk, tmp_path: Path) -> Path:
    shutil.copytree(next(desk.stores.iterdir()), tmp_path / "store")
    return tmp_path / "store"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def flip(file: Path, behind: bytes | None = None) -> Path:
    """Change one bit in the middle of a file, or after a given text in it."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if behind is None else content.index(behind) + len(behind)] ^= 1
    file.write_bytes(content)
    return file


def newest(run: Path) -> Path:
    return CheckpointManager(run / "checkpoints").paths()[-1]


def without(file: Path) -> Path:
    file.unlink()
    return file


def spoilt_events(run: Path) -> Path:
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    lines[2] = "no event\n"
    (run / "events.jsonl").write_text("".join(lines))
    return run / "events.jsonl"


def truncated(file: Path) -> Path:
    file.write_bytes(file.read_bytes()[:-1])
    return file


def moved(folder: Path) -> Path:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")
    return folder


DAMAGE: dict[str, Callable[[Path], Path]] = {
    "a bit of a tensor": lambda run: flip(newest(run) / "00000.safetensors"),
    "the end of a tensor": lambda run: truncated(newest(run) / "00001.safetensors"),
    "a file of a checkpoint": lambda run: without(newest(run) / "00002.safetensors"),
    "a manifest": lambda run: flip(newest(run) / "manifest.json"),
    "a line of the events": spoilt_events,
    "the environment": lambda run: truncated(truncated(run / "environment.json")),
    "a link in the place of the checkpoints": lambda run: moved(run / "checkpoints"),
    "the recipe": lambda run: without(run / "recipe.toml"),
}


def test_a_sound_run_and_a_sound_store_are_said_to_be_sound(desk: Desk) -> None:
    for kind, path in (("run", desk.stacks), ("run", desk.layers), ("store", next(desk.stores.iterdir()))):
        before = contents(path)
        said = cotswold("verify", path)
        assert (said.status, said.err) == (0, ""), said.out
        assert said.out.startswith(f"{path}: the {kind} is intact (")
        assert contents(path) == before


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_to_a_run_is_found_and_named(run: Path, name: str) -> None:
    damaged = DAMAGE[name](run)
    said = cotswold("verify", run)
    assert said.status == 1
    assert any(str(damaged) in line or str(damaged.parent) in line for line in said.out.splitlines()), (
        said.out
    )
    assert len(said.out.splitlines()) == 1


def test_every_damage_has_a_line_of_its_own(run: Path) -> None:
    files = [
        flip(file)
        for path in CheckpointManager(run / "checkpoints").paths()
        for file in path.glob("0000[01].*")
    ]
    assert len(files) > 2
    spoilt_events(run)
    found = json.loads(cotswold("verify", run, "--json").out)
    assert found["is_valid"] is False and found["kind"] == "run"
    assert len(found["findings"]) == len(files) + 1
    for file in files:
        assert any(finding.startswith(f"{file} is damaged") for finding in found["findings"])


def test_a_checkpoint_that_is_gone_though_it_was_the_newest_is_missed(run: Path) -> None:
    gone = newest(run)
    shutil.rmtree(gone)
    said = cotswold("verify", run)
    assert said.status == 1
    assert f"{gone}, which events.jsonl names as the newest checkpoint, is missing" in said.out


def test_a_checkpoint_of_another_run_is_found(run: Path, desk: Desk) -> None:
    shutil.copytree(newest(desk.layers), run / "checkpoints" / "00000001")
    said = cotswold("verify", run)
    assert said.status == 1
    assert f"{run / 'checkpoints' / '00000001'} is a checkpoint of another run or recipe" in said.out


def test_a_run_that_is_being_trained_can_be_verified(run: Path) -> None:
    """The last line is incomplete, another process holds the lock, and a checkpoint is half written."""
    with (run / "events.jsonl").open("a") as file:
        file.write('{"kind":"st')
    shutil.copytree(newest(run), run / "checkpoints" / "00000099.partial")
    with RunDirectory.open(run).lock():
        assert cotswold("verify", run).status == 0


def test_a_checkpoint_that_is_superseded_meanwhile_is_no_damage(run: Path) -> None:
    first = CheckpointManager(run / "checkpoints").paths()[0]

    def superseded(done: int, total: int) -> None:
        shutil.rmtree(first, ignore_errors=True)

    assert verify_run(RunDirectory.open(run), progress=superseded) == []


def test_progress_counts_every_file_once(run: Path) -> None:
    counted: list[tuple[int, int]] = []
    verify_run(RunDirectory.open(run), progress=lambda done, total: counted.append((done, total)))
    files = len(list((run / "checkpoints").rglob("*.safetensors")))
    assert counted == [(number, files) for number in range(1, files + 1)]


def test_damage_to_a_store_is_found_and_named(store: Path) -> None:
    chunk = max((file for file in store.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    flip(chunk)
    said = cotswold("verify", store)
    assert said.status == 1
    assert str(chunk.relative_to(store)) in said.out
    flip(store / "manifest.json", behind=b'"seed": ')  # its notes are for people, and have no checksum
    said = cotswold("verify", store)
    assert said.status == 1
    assert "manifest.json" in said.out


def test_what_is_neither_run_nor_store_is_refused(desk: Desk, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing", desk.stacks_recipe, newest(desk.stacks)):
        said = cotswold("verify", path)
        assert said.status == 2
        assert said.error.startswith(str(path)) and "cotswold train, cotswold prepare" in said.error
