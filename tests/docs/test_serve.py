"""The program of docs/serve.md, on `cotswold serve`, and the other code of the page, run unchanged."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.warm import PYTHON

import cotswold
from cotswold.checkpoint import CheckpointManager

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## A complete program\n")[2].partition("\n## ")[0]
LINES_MOST = 30
CODE = re.findall(r"```python\n(.*?)```", PAGE.replace(SECTION, ""), flags=re.DOTALL)


def started(words: list[str], folder: Path) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(Path(each).absolute()) for each in sys.path if each])
    environ = {**os.environ, "PYTHONPATH": paths}
    environ.pop("COTSWOLD_TOKEN", None)
    return subprocess.Popen(
        words, cwd=folder, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@contextmanager
def served(line: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield the process of a command line, and the address that it prints."""
    process = started([sys.executable, "-m", "cotswold.cli.main", *shlex.split(line)[1:]], folder)
    assert process.stderr is not None
    try:
        said = process.stderr.readline()
        address = re.search(r" at (\S+);", said)
        assert address is not None, said + process.stderr.read()
        yield process, address[1]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_the_loop_of_the_page_learns_and_is_shorter_than_30_lines(tmp_path: Path) -> None:
    module, loop = re.findall(r"```python\n(.*?)```", SECTION, flags=re.DOTALL)
    assert loop.count("\n") < LINES_MOST
    (tmp_path / "my_module.py").write_text(module)
    (tmp_path / "loop.py").write_text(loop)
    (line,) = re.findall(r"^    (cotswold serve .*)$", SECTION, flags=re.MULTILINE)
    with served(line, tmp_path) as (process, address):
        assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
        loops = [started([*PYTHON, "loop.py", address], tmp_path) for _ in range(2)]
        for each in loops:
            said, wrong = each.communicate(timeout=60)
            assert each.returncode == 0, wrong
            assert float(said) < 1.0, "the variance of what it learns is 8"
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
    assert process.returncode == 0, told
    assert "ended: 0 clients, 600 pushes" in told and "38,400 samples counted" in told
    checkpoints = CheckpointManager(tmp_path / "served" / "checkpoints", identity="cotswold serve")
    checkpoint = checkpoints.latest().checkpoint
    assert checkpoint is not None and checkpoint.step == 600
    assert checkpoint.shape("0.weight") == (32, 8) and "vector.squares" in checkpoint.names


@pytest.mark.slow
def test_the_code_of_the_page_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, _ = CODE
    names: dict[str, object] = {}
    exec(compile(code, "serve.md", "exec"), names)
    assert isinstance(names["model"], torch.nn.Linear)
    assert (tmp_path / "served" / "checkpoints").is_dir()


class ElsewhereError(Exception):
    """A stand-in for a wait."""


@pytest.mark.soak
def test_the_loop_of_the_page_outlives_its_servers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {}
    exec(compile(CODE[1], "serve.md", "exec"), names)
    first = cotswold.serve(torch.nn.Linear(4, 1), learning_rate=0.01)
    ended: list[bool] = []

    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for number in range(3):
            if number == 2:
                first.close()
                ended.append(True)
            yield torch.ones(8, 4), torch.zeros(8, 1)

    def wait(seconds: float) -> None:
        raise ElsewhereError

    monkeypatch.setattr("time.sleep", wait)
    with pytest.raises(ElsewhereError):
        names["learn"](first.address, first.token, torch.nn.Linear(4, 1), batches())
    assert ended and first.status.pushes == 2
    assert "have ended" in capsys.readouterr().out


def test_the_name_of_the_issue_is_that_of_the_package() -> None:
    assert cotswold.connect is cotswold.connect
