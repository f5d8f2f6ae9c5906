"""docs/data-servers.md: its commands, its transform, its recipe and its loop run unchanged."""

from __future__ import annotations

import re
import shlex
import signal
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cli.test_help_texts import parses
from tests.support.training.runs import bits
from tests.support.training.served_runs import serving

import cotswold
import cotswold.data
from cotswold.data import StoreDataset
from cotswold.run import RunDirectory

PAGE = (Path(__file__).parents[2] / "docs" / "data-servers.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
TOML = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
COMMANDS = re.findall(r"^    (cotswold serve data .*)$", PAGE, flags=re.MULTILINE)
RECIPE = """
name = "mine"

[data]
source = "digits.npz"
labels = "file"
size = 8
colour = "grey"
per_image_standardise = false
whiten = false

{augment}

[[network.layers]]
type = "linear"
features = 2

[training]
strategy = "supervised"
batch_size = 10
epochs = 3
threads = 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the folder of a reader who follows the page."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    labels = np.arange(200) % 2
    pixels = random.integers(0, 100, (200, 8, 8)) + 100 * labels[:, None, None]
    np.savez(tmp_path / "digits.npz", x=pixels.astype(np.uint8), labels=labels)
    transform, table = PYTHON[3], TOML[1]
    (tmp_path / "my_module.py").write_text(transform)
    (tmp_path / "my.toml").write_text(RECIPE.format(augment=table))
    return tmp_path


@pytest.mark.slow
def test_whoever_does_what_the_page_says_is_served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    words = shlex.split(COMMANDS[0])[3:]
    assert words[words.index("--listen") + 1] == "127.0.0.1:7000"
    words[words.index("--listen") + 1] = "127.0.0.1:0"  # tests run side by side
    with serving(*words, folder=folder, token=None) as command:
        address = command.address
        monkeypatch.setenv("COTSWOLD_TOKEN", (folder / "token").read_text().strip())
        alone = cotswold.train_recipe("my.toml", "runs/alone", progress=False)
        assert 'servers = "127.0.0.1:7000"' in TOML[0]
        served = cotswold.train_recipe(
            "my.toml", "runs/served", overrides={"data.servers": address}, progress=False
        )
        plain = cotswold.train_recipe("my.toml", "runs/plain", overrides={"data.augment": []}, progress=False)
        tensors = [bits(RunDirectory(run.path))[0] for run in (served, alone, plain)]
        assert tensors[0] == tensors[1] != tensors[2]
        loop = PYTHON[1].replace("127.0.0.1:7000", address).replace("batch_size=64", "batch_size=19")
        had: list[tuple[int, int]] = []
        exec(compile(loop.replace("...  #", "had.append((epoch, len(x)))  #"), "page", "exec"), {"had": had})
        assert had == [(epoch, 19) for epoch in range(10) for _ in range(10)]
        command.send(signal.SIGTERM)
        assert command.ended() == 0


@pytest.mark.slow
def test_the_pool_of_python_serves_what_a_store_dataset_gives(folder: Path) -> None:
    had: list[cotswold.api.servers.data_server.ServedData] = []
    code = PYTHON[0].replace("    print(", "    look(served)\n    print(")
    assert "look(" in code

    def look(served: cotswold.api.servers.data_server.ServedData) -> None:
        had.append(served)
        with cotswold.data.connect(served.address, served.token, batch_size=19) as batches:
            found = [x for x, _ in batches]
        wanted = [x for x, _ in StoreDataset(served.store, batch_size=19)]
        assert len(found) == len(wanted) == 10
        assert not all(bool((x == y).all()) for x, y in zip(found, wanted, strict=True)), "it is varied"
        assert all(bool((abs(x - y) <= 0.31 * abs(y)).all()) for x, y in zip(found, wanted, strict=True))
        while served.status.samples < 190:  # servers say it in their beats
            assert not served.wait(0.05)
        assert served.status.hit_rate is not None and not served.status.ended

    exec(compile(code, "page", "exec"), {"look": look})
    assert len(had) == 1 and had[0].wait(0.0), "it is over"


@pytest.mark.soak
def test_the_loop_of_the_page_outlives_its_pool(folder: Path) -> None:
    words = ("my.toml", "--servers", 1, "--token-file", "token", "--listen")
    had: list[tuple[int, int]] = []
    with ExitStack() as held:
        pools = [held.enter_context(serving(*words, "127.0.0.1:0", folder=folder, token=None))]
        address = pools[0].address

        def look(epoch: int, x: torch.Tensor) -> None:
            had.append((epoch, len(x)))
            if len(had) == 200:
                pools[0].process.kill()
                pools[0].process.wait()
                pools.append(held.enter_context(serving(*words, address, folder=folder, token=None)))
                assert pools[1].address == address

        loop = PYTHON[2].replace("127.0.0.1:7000", address).replace("batch_size=64", "batch_size=1")
        names = {"look": look, "cotswold": cotswold, "Path": Path}
        exec(compile(loop.replace("...  #", "look(epoch, x)  #"), "page", "exec"), names)
    counts = Counter(epoch for epoch, _ in had)
    assert 200 <= counts.pop(1) < 300, "that which the pool did not outlive begins again"
    assert counts == {epoch: 190 for epoch in range(10) if epoch != 1}


def test_every_command_of_the_page_parses() -> None:
    assert len(COMMANDS) == 4
    for line in COMMANDS:
        parses(line)
