"""A program's own module and data set, trained by replicas forked from it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.support.api.train import train_with
from torch import Tensor, nn
from torch.utils.data import IterableDataset

import cotswold
from cotswold.errors import MismatchError, RecipeError, UserError


def samples() -> tuple[Tensor, Tensor]:
    numbers = torch.Generator().manual_seed(0)
    inputs = torch.randn(600, 8, generator=numbers)
    return inputs, (inputs[:, :3].sum(1) > 0).long()


def network(hidden: int = 16) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, hidden), nn.Tanh(), nn.Linear(hidden, 2))


def learnt(module: nn.Module, place: Path, **words: object) -> cotswold.Run:
    asked = {"strategy": "downpour", "batch_size": 20, "learning_rate": 0.3, "epochs": 3, **words}
    return train_with(module, samples(), directory=place, loss="cross_entropy", **asked)


def validations(run: cotswold.Run) -> list[float]:
    return [float(str(event["accuracy"])) for event in run.events if event["kind"] == "validation"]


def counted(run: cotswold.Run) -> int:
    return max(int(str(event["step"])) for event in run.events if event["kind"] == "step")


@pytest.mark.parametrize(
    "words",
    [
        {"workers": 2, "servers": 2},
        {"processes": 2, "push_every": 2},
        {"workers": 2, "update_rule": "deltas", "push_every": 3, "pull_every": 3},
        {"push_format": "factors", "batch_size": 4, "learning_rate": 0.1},
    ],
    ids=lambda words: " ".join(words),
)
def test_it_learns_in_place_and_every_sample_counts(words: dict[str, object], tmp_path: Path) -> None:
    module = network()
    run = learnt(module, tmp_path / "run", validation=0.2, **words)
    assert run.status == "finished"
    assert counted(run) == 3 * 480
    assert validations(run)[-1] > 0.85 > validations(run)[0]
    inputs, targets = samples()
    assert (module(inputs).argmax(1) == targets).float().mean() > 0.85 and not module.training


def test_one_replica_without_overlap_is_plain_descent_in_the_order_that_is_dealt(tmp_path: Path) -> None:
    """A batch of all samples leaves no order, so the steps equal those of a loop of torch."""
    module, other = network(), network()
    learnt(module, tmp_path / "run", max_staleness=0, batch_size=600, epochs=4)
    optimiser, (inputs, targets) = torch.optim.SGD(other.parameters(), lr=0.3), samples()
    for _ in range(4):
        optimiser.zero_grad()
        nn.functional.cross_entropy(other(inputs), targets).backward()  # type: ignore[no-untyped-call]  # torch's
        optimiser.step()
    for mine, torchs in zip(module.parameters(), other.parameters(), strict=True):
        assert torch.allclose(mine, torchs, rtol=1e-5, atol=1e-6)


@pytest.mark.soak
def test_it_is_extended_with_other_replicas_and_another_module_is_refused(tmp_path: Path) -> None:
    learnt(network(), tmp_path / "run", workers=2)
    run = learnt(network(), tmp_path / "run", workers=1, servers=2, epochs=5, resume=True)
    assert counted(run) == 5 * 600
    with pytest.raises(MismatchError, match="the module differs from that"):
        learnt(network(hidden=9), tmp_path / "run", epochs=6, resume=True)


class Endless(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield torch.zeros(8), torch.tensor(0)


@pytest.mark.parametrize(
    ("module", "words", "complaint"),
    [
        (nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)), {}, r"1 \(BatchNorm1d\) normalises over a batch"),
        (nn.Linear(8, 2), {"unit_norm": True}, r"training.unit_norm is for \[\[network.layers\]\]"),
        (nn.Linear(8, 2), {"grid": "1x2"}, "cannot be partitioned over ranks"),
    ],
    ids=["batch norm", "unit norm", "grid"],
)
def test_what_replicas_cannot_share_is_refused(
    module: nn.Module, words: dict[str, object], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises((UserError, RecipeError), match=complaint):
        learnt(module, tmp_path / "run", **words)
    assert not (tmp_path / "run").exists()


def test_samples_without_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="strategy downpour reads samples by index"):
        cotswold.train(
            nn.Linear(8, 2), Endless(), directory=tmp_path / "run", loss="cross_entropy", strategy="downpour"
        )


def test_a_field_that_nobody_has_is_told_with_those_of_the_cluster(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"Downpour\(\): num_workers is not a key; did you mean workers\?"):
        learnt(network(), tmp_path / "run", num_workers=2)
    with pytest.raises(RecipeError, match=r"known keys: .*batch_size.*\bworkers, processes, servers\b"):
        learnt(network(), tmp_path / "run", zork=2)
    with pytest.raises(RecipeError, match=r"Downpour\(\): n_push is not a key; did you mean push_every\?"):
        learnt(network(), tmp_path / "run", n_push=2)


def test_a_loss_that_grew_far_and_stayed_finite_is_said_after_the_run_in_its_report_and_by_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "cotswold"):
        run = learnt(network(), tmp_path / "run", learning_rate=1e4, progress=False)
    assert run.status == "finished"
    (said,) = [each.message for each in caplog.records if each.message.startswith("warning: the final loss")]
    assert (
        "far above the initial loss 0." in said
        and "try a smaller learning rate (training.learning_rate)" in said
    )
    assert (
        "training.clip_norm" in said and "training.max_staleness=0" in said and "fewer replicas" not in said
    )
    assert cotswold.why(run).sentences[-1] == said
    assert "Warning: the final loss" in run.report(progress=False).read_text()
