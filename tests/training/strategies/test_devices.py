"""A run resumed on another device; CUDA's random calls are recorded here instead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.training.runs import bits, finish, last, resumed, started, stop_after
from tests.support.training.small_recipes import supervised
from torch import Tensor

from cotswold.training.strategies.supervised import SupervisedStrategy


class Gpu:
    """The random state of a device."""

    def __init__(self) -> None:
        self.state: Tensor = torch.zeros(16, dtype=torch.uint8)
        self.seeds: list[int] = []


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()

    @contextmanager
    def device(_: torch.device) -> Iterator[None]:
        yield

    def set_state(state: Tensor, _: torch.device) -> None:
        gpu.state = state

    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda _: gpu.state.clone())
    monkeypatch.setattr(torch.cuda, "set_rng_state", set_state)
    monkeypatch.setattr(torch.cuda, "manual_seed", gpu.seeds.append)
    monkeypatch.setattr(torch.cuda, "device", device)
    return gpu


@contextmanager
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make strategies believe that their device is CUDA."""
    begin = SupervisedStrategy.__init__

    def begun(self: SupervisedStrategy, *words: Any) -> None:
        begin(self, *words)
        self._device = torch.device("cuda")

    with monkeypatch.context() as patched:
        patched.setattr(SupervisedStrategy, "__init__", begun)
        yield


def test_a_run_of_the_cpu_goes_on_with_cuda_and_back(
    gpu: Gpu, images: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    assert not stop_after(started(supervised(images), run, stores), 3, monkeypatch)
    with on_gpu(monkeypatch):
        assert not stop_after(resumed(run, stores), 5, monkeypatch)
        assert len(gpu.seeds) == 1
        assert last(run / "checkpoints").read("random.cuda").equal(gpu.state)
        gpu.state = torch.ones(16, dtype=torch.uint8)
        assert not stop_after(resumed(run, stores), 7, monkeypatch)
        assert gpu.state.sum() == 0 and len(gpu.seeds) == 1  # the state of the checkpoint, no seed
    whole = finish(started(supervised(images), tmp_path / "whole", stores))
    assert bits(finish(resumed(run, stores))) == bits(whole)


def test_the_seed_of_another_device_follows_from_where_the_run_stood(
    gpu: Gpu, images: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, step in (("one", 3), ("same", 3), ("later", 5)):
        assert not stop_after(started(supervised(images), tmp_path / name, stores), step, monkeypatch)
        with on_gpu(monkeypatch):
            assert not stop_after(resumed(tmp_path / name, stores), 6, monkeypatch)
    one, same, later = gpu.seeds
    assert one == same != later
