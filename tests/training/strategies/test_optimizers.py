"""Optimisers, schedules, precision and accumulation of strategy supervised, in one process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.training.runs import bits, events, last
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from torch.utils.data import TensorDataset

from cotswold.errors import MismatchError, RunError, UserError
from cotswold.recipe.schema import SupervisedTraining
from cotswold.run import RunDirectory, Stop
from cotswold.training import ModuleJob, Resume, open_module_job
from cotswold.training.components import Components
from cotswold.training.learning_rates import LearningRates
from cotswold.training.per_epoch import PerEpoch

SAMPLES, BATCHES, EPOCHS = 50, 7, 3


class Net(nn.Sequential):
    """Linear layers with batch normalisation and dropout."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        super().__init__(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def labelled(samples: int = SAMPLES) -> TensorDataset:
    x = torch.randn(samples, 6, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x[:, :3].argmax(1))


def opened(
    run: Path, module: nn.Module | None = None, data: TensorDataset | None = None, **words: Any
) -> ModuleJob:
    own = {name: words.pop(name) for name in ("components", "resume", "validation") if name in words}
    settings = SupervisedTraining(**{"batch_size": 8, "epochs": EPOCHS, "threads": 1, **words})
    return open_module_job(
        module or Net(),
        data or labelled(),
        loss="cross_entropy",
        directory=run,
        settings=settings,
        **{"validation": labelled(), **own},
    )


def train(job: ModuleJob, stop_at: int = 0) -> RunDirectory:
    stop = Stop()

    def watch(event: Mapping[str, object]) -> None:
        if event["kind"] == "step" and event["step"] == stop_at:
            stop.signal = 2

    assert job.train(watch, stop) == (stop_at == 0)
    return job.run


def two_groups(module: nn.Module) -> Optimizer:
    """Return an optimiser whose groups are in another order than the module's parameters."""
    if not isinstance(module, nn.Module):
        raise TypeError("two_groups takes a module")
    first, *_, final = module.children()
    groups: list[dict[str, Any]] = [
        {"params": final.parameters(), "lr": 0.003, "weight_decay": 0.0},
        {"params": first.parameters(), "betas": (0.8, 0.99)},
    ]
    return AdamW(groups, lr=0.01, amsgrad=True)


def one_cycle(optimizer: Optimizer) -> OneCycleLR:
    return OneCycleLR(optimizer, max_lr=0.05, total_steps=BATCHES * EPOCHS)


def plateau(optimizer: Optimizer) -> ReduceLROnPlateau:
    return ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)


def in_turn(optimizer: Optimizer) -> SequentialLR:
    schedulers = [LinearLR(optimizer, total_iters=4), CosineAnnealingLR(optimizer, 20)]
    return SequentialLR(optimizer, schedulers, milestones=[4])


ADAMW = partial(AdamW, lr=0.01)
CASES: dict[str, tuple[dict[str, Any], Components | None]] = {
    "adam": ({"optimizer": "adam"}, None),
    "adamw": ({"optimizer": "adamw"}, None),
    "nadam": ({"optimizer": "nadam"}, None),
    "radam": ({"optimizer": "radam"}, None),
    "rmsprop": ({"optimizer": "rmsprop", "momentum": 0.5}, None),
    "adagrad": ({"optimizer": "adagrad"}, None),
    "muon": ({"optimizer": "muon"}, None),
    "nesterov": ({"nesterov": True}, None),
    "no momentum": ({"momentum": 0.0}, None),
    "own": ({}, Components(optimizer=ADAMW)),
    "one cycle": ({}, Components(optimizer=ADAMW, scheduler=one_cycle)),
    "one cycle of sgd": ({}, Components(scheduler=one_cycle)),
    "plateau": ({}, Components(optimizer=ADAMW, scheduler=plateau)),
    "in turn": ({}, Components(optimizer=ADAMW, scheduler=in_turn)),
    "by epoch": ({}, Components(scheduler=PerEpoch(partial(MultiStepLR, milestones=[1, 2])))),
    "bfloat16": ({"precision": "bf16-mixed", "optimizer": "adamw"}, None),
    "float16": ({"precision": "16-mixed", "clip_norm": 0.5}, None),
    "accumulated": ({"accumulate": 3}, None),
    "accumulated adamw": ({"accumulate": 3, "optimizer": "adamw", "clip_norm": 0.5}, None),
}


@pytest.mark.parametrize("stop_at", [1, 5])
@pytest.mark.parametrize("case", CASES)
def test_a_stopped_run_goes_on_with_the_same_bits(tmp_path: Path, case: str, stop_at: int) -> None:
    words, components = CASES[case]
    whole = train(opened(tmp_path / "whole", components=components, **words))
    train(opened(tmp_path / "parts", components=components, **words), stop_at)
    torch.manual_seed(99)  # whatever was drawn meanwhile
    again = opened(tmp_path / "parts", components=components, resume=Resume.ALWAYS, **words)
    assert bits(train(again)) == bits(whole)
    assert events(again.run, "resumed")[0]["step"] == stop_at


@pytest.mark.parametrize("stop_at", [1, 9])
def test_an_optimiser_with_two_groups_goes_on_with_the_same_bits(tmp_path: Path, stop_at: int) -> None:
    def job(run: str, **words: Any) -> ModuleJob:
        module = Net()
        components = Components(optimizer=two_groups(module), scheduler=partial(StepLR, step_size=4))
        return opened(tmp_path / run, module, components=components, **words)

    whole = train(job("whole"))
    train(job("parts"), stop_at)
    assert bits(train(job("parts", resume=Resume.ALWAYS))) == bits(whole)
    names = last(whole.checkpoints).names
    assert "optimizer.4.weight.max_exp_avg_sq" in names and "optimizer.1.weight.exp_avg" not in names


def by_hand(optimizer: Optimizer, module: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
    for x, labels in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(x), labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()


class Plain(nn.Sequential):
    """A network without batch normalisation and dropout, so that accumulated batches are one batch."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        super().__init__(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("words", "make"),
    [
        ({"optimizer": "adamw"}, partial(AdamW, lr=0.001)),
        (
            {"optimizer": "adamw", "betas": (0.5, 0.9), "eps": 1e-3},
            partial(AdamW, betas=(0.5, 0.9), eps=1e-3),
        ),
        ({"optimizer": "nadam"}, torch.optim.NAdam),
        ({"optimizer": "rmsprop"}, partial(torch.optim.RMSprop, lr=0.001)),
        ({"optimizer": "adagrad"}, torch.optim.Adagrad),
        ({"learning_rate": 0.1, "nesterov": True}, partial(SGD, lr=0.1, momentum=0.9, nesterov=True)),
    ],
)
def test_a_named_optimiser_is_that_of_torch(tmp_path: Path, words: dict[str, Any], make: Any) -> None:
    trained, expected, data = Plain(), Plain(), labelled(8)
    for each in (trained, expected):
        each.train()
    by_hand(make(expected.parameters()), expected, [data.tensors] * 5)  # type: ignore[list-item]  # two
    train(opened(tmp_path / "run", trained, data, epochs=5, schedule="constant", warmup=0.0, **words))
    for one, other in zip(trained.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_muon_updates_matrices_and_adamw_the_rest(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(8, 3))
    data = TensorDataset(torch.randint(10, (16, 2)), torch.randint(3, (16,)))
    run = train(opened(tmp_path / "run", module, data, optimizer="muon", validation=None))
    names = [each for each in last(run.checkpoints).names if each.startswith("optimizer.")]
    assert "optimizer.2.weight.momentum_buffer" in names and "optimizer.2.weight.exp_avg" not in names
    assert {"optimizer.0.weight.exp_avg", "optimizer.2.bias.exp_avg"} <= {*names}
    with pytest.raises(UserError, match="Conv1d has none to train; use adamw"):
        train(opened(tmp_path / "none", nn.Conv1d(1, 1, 1), optimizer="muon"))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_accumulated_batches_are_one_large_batch(tmp_path: Path, optimizer: str) -> None:
    data, trained, expected = labelled(), Plain(), Plain()
    words = {"optimizer": optimizer, "clip_norm": 0.3, "epochs": 2, "validation": None}
    one = train(opened(tmp_path / "one", expected, data, batch_size=24, **words))
    run = train(opened(tmp_path / "run", trained, data, batch_size=8, accumulate=3, **words))
    for name, values in expected.state_dict().items():
        torch.testing.assert_close(trained.state_dict()[name], values, rtol=1e-4, atol=1e-6)
    assert last(run.checkpoints).step == last(one.checkpoints).step == 6  # 24, 24 and 2 samples an epoch
    pairs = zip(events(run, "step"), events(one, "step"), strict=True)
    for mine, theirs in pairs:
        for name in ("loss", "accuracy", "gradient_norm", "learning_rate"):
            assert mine[name] == pytest.approx(theirs[name], rel=1e-4)
    assert events(run, "end")[0]["samples"] == 100


def test_accumulated_batches_with_weights_and_ignored_classes_are_one_large_batch(tmp_path: Path) -> None:
    x, labels = labelled(48).tensors
    weights = torch.rand(48, generator=torch.Generator().manual_seed(7))
    ignored = labels.clone()
    ignored[torch.rand(48, generator=torch.Generator().manual_seed(8)) < 0.4] = -100
    for name, data in (("weights", (x, labels, weights)), ("ignored", (x, ignored))):
        one, other = Plain(), Plain()
        words = {"epochs": 2, "validation": None}
        train(opened(tmp_path / f"one {name}", one, TensorDataset(*data), batch_size=24, **words))
        parts = {"batch_size": 8, "accumulate": 3}
        train(opened(tmp_path / f"parts {name}", other, TensorDataset(*data), **parts, **words))
        for values, expected in zip(other.parameters(), one.parameters(), strict=True):
            torch.testing.assert_close(values, expected, rtol=1e-4, atol=1e-6)


def test_a_skipped_update_is_no_step_of_a_scheduler_but_ends_its_epoch() -> None:
    values = nn.Parameter(torch.zeros(1))
    halves = partial(StepLR, step_size=1, gamma=0.5)
    for scheduler, expected in ((halves, 0.5), (PerEpoch(halves), 0.25)):
        optimizer = SGD([values], lr=1.0)
        components = Components(optimizer=optimizer, scheduler=scheduler)
        rates = LearningRates(optimizer, SupervisedTraining(), components)
        optimizer.step()
        rates.after_step(True)
        rates.after_step(True, is_skipped=True)
        assert rates.before_step(2, 10) == {"learning_rate": expected}


def test_the_last_update_of_each_epoch_has_the_remaining_batches(tmp_path: Path) -> None:
    seen: list[int] = []
    module = Plain()
    next(module.parameters()).register_hook(lambda _: seen.append(1))  # type: ignore[no-untyped-call]  # torch's
    make = partial(Counting, seen=seen)
    run = train(opened(tmp_path / "run", module, accumulate=3, components=Components(optimizer=make)))
    assert [each for each in seen if each != 1] == [-3, -3, -1] * EPOCHS
    assert [event["step"] for event in events(run, "validation")] == [0, 3, 6, 9]


class Counting(SGD):
    """SGD that notes how many backward passes came before each step."""

    def __init__(self, parameters: Any, seen: list[int]) -> None:
        super().__init__(parameters, lr=0.1)
        self.seen = seen

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # narrower
        before = 0
        while before < len(self.seen) and self.seen[-1 - before] == 1:
            before += 1
        self.seen.append(-before)
        super().step()


def test_a_gradient_is_clipped_and_its_norm_reported(tmp_path: Path) -> None:
    module = Plain()
    before = copy.deepcopy(module.state_dict())
    words = {"clip_norm": 0.01, "learning_rate": 1.0, "momentum": 0.0, "schedule": "constant", "warmup": 0.0}
    run = train(opened(tmp_path / "run", module, labelled(8), epochs=1, **words))
    (step,) = events(run, "step")
    assert float(str(step["gradient_norm"])) > 0.1
    moved = torch.cat([(each - before[name]).flatten() for name, each in module.state_dict().items()])
    assert float(moved.norm()) == pytest.approx(0.01, rel=1e-3)


def test_an_own_optimiser_keeps_its_rate_and_a_scheduler_changes_it(tmp_path: Path) -> None:
    def rates(run: str, **words: Any) -> list[float]:
        job = opened(tmp_path / run, **{"epochs": 2, **words})
        return [float(str(event["learning_rate"])) for event in events(train(job), "step")]

    assert set(rates("constant", components=Components(optimizer=ADAMW))) == {0.01}
    halves = partial(StepLR, step_size=1, gamma=0.5)
    found = rates("steps", components=Components(optimizer=ADAMW, scheduler=halves))
    assert found == [0.01 * 0.5**step for step in range(2 * BATCHES)]
    found = rates("epochs", components=Components(optimizer=ADAMW, scheduler=PerEpoch(halves)))
    assert found == [0.01] * BATCHES + [0.005] * BATCHES
    found = rates("plateau", epochs=4, components=Components(optimizer=ADAMW, scheduler=plateau))
    assert found[: BATCHES + 1] == [0.01] * (BATCHES + 1) and found[-1] < 0.01
    assert min(rates("cosine")) < 0.001 and max(rates("named", optimizer="adamw")) == pytest.approx(0.001)


def test_the_start_names_optimiser_schedule_and_precision(tmp_path: Path) -> None:
    (start,) = events(train(opened(tmp_path / "named", optimizer="adamw", precision="bf16-mixed")), "start")
    assert (start["optimizer"], start["schedule"]) == ("adamw", "cosine")
    assert start["precision"] == "bf16-mixed" and start["accumulate"] == 1
    assert start["optimizer_settings"] == {
        "learning_rate": 0.001,
        "betas": [0.9, 0.999],
        "eps": 1e-8,
        "weight_decay": 0.01,
    }
    own = Components(optimizer=ADAMW, scheduler=one_cycle)
    (start,) = events(train(opened(tmp_path / "own", components=own)), "start")
    assert (start["optimizer"], start["schedule"]) == ("torch.optim.adamw.AdamW", "OneCycleLR")


def test_other_settings_of_an_own_optimiser_at_resume_are_named_in_a_warning(tmp_path: Path) -> None:
    def again(run: str, lr: float, decay: float, scheduler: Any = None, stop_at: int = 0) -> list[str]:
        optimizer = partial(AdamW, lr=lr, weight_decay=decay)
        components = Components(optimizer=optimizer, scheduler=scheduler)
        job = opened(tmp_path / run, components=components, resume=Resume.IF_STARTED)
        return [str(event["warning"]) for event in events(train(job, stop_at), "warning")]

    assert again("plain", 0.01, 0.1, stop_at=5) == []
    (said,) = again("plain", 0.02, 0.0)
    assert said == (
        "the optimizer AdamW continues with the settings of the checkpoint, not with those given now: "
        "lr 0.01 (not 0.02), weight_decay 0.1 (not 0.0)"
    )
    for run, scheduler in (("cycle", one_cycle), ("plateau", plateau)):
        assert (
            again(run, 0.01, 0.1, scheduler, stop_at=9) == again(run, 0.01, 0.1, scheduler, stop_at=12) == []
        )
        assert "weight_decay 0.1 (not 0.2)" in again(run, 0.01, 0.2, scheduler)[0]


class Odd(SGD):
    """Keeps state of its own from the first step on."""

    def __init__(self, parameters: Any, keep: Callable[[Odd], None]) -> None:
        super().__init__(parameters, lr=0.1)
        self.keep, self.steps = keep, 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        self.keep(self)
        return super().step(closure)


def _dotted(odd: Odd) -> None:
    odd.state[odd.param_groups[0]["params"][0]]["a.b"] = 1.0


def _numbered(odd: Odd) -> None:
    odd.state[odd.param_groups[0]["params"][0]][1] = torch.zeros(1)


def _collected(odd: Odd) -> None:
    odd.state[odd.param_groups[0]["params"][0]]["seen"] = {1, 2}


def _foreign(odd: Odd) -> None:
    odd.state[torch.zeros(1)]["value"] = 1.0


def _of_group(odd: Odd) -> None:
    odd.param_groups[0]["seen"] = {1, 2}


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        (_dotted, r"Odd keeps state under the key 'a\.b', which a checkpoint cannot store"),
        (_numbered, "Odd keeps state under the key 1, which a checkpoint cannot store"),
        (_collected, r"the state of the optimiser for \S+ has a set, which a checkpoint cannot store"),
        (_foreign, "Odd keeps state under tensor"),
        (_of_group, "the settings of the optimiser has a set"),
    ],
)
@pytest.mark.parametrize("scheduler", [None, one_cycle])
def test_state_that_no_checkpoint_can_store_is_refused_before_the_first_step(
    tmp_path: Path, keep: Callable[[Odd], None], said: str, scheduler: Any
) -> None:
    module = Net()
    before, odd = copy.deepcopy(module.state_dict()), Odd(module.parameters(), keep)
    job = opened(tmp_path / "run", module, components=Components(optimizer=odd, scheduler=scheduler))
    with pytest.raises(UserError, match=said):
        job.train(lambda event: None, Stop())
    assert not events(job.run, "step") and not odd.steps and not any(odd.state.values())
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)


def test_an_optimiser_that_takes_no_trial_step_trains(tmp_path: Path) -> None:
    def fails_at_first(odd: Odd) -> None:
        if not any(bool(each.grad.any()) for each in odd.param_groups[0]["params"] if each.grad is not None):
            raise ValueError("no gradient")

    assert train(opened(tmp_path / "run", components=Components(optimizer=partial(Odd, keep=fails_at_first))))


def test_another_optimiser_or_scheduler_is_refused_when_a_run_is_resumed(tmp_path: Path) -> None:
    def again(run: str, components: Components | None = None, **words: Any) -> None:
        job = opened(tmp_path / run, components=components, resume=Resume.ALWAYS, **words)
        job.train(lambda event: None, Stop())

    train(opened(tmp_path / "own", components=Components(optimizer=ADAMW)), 5)
    train(opened(tmp_path / "named"), 5)
    with pytest.raises(RunError, match=r"training.optimizer \(custom there, sgd here\)"):
        again("own")
    with pytest.raises(RunError, match=r"training.optimizer \(sgd there, custom here\)"):
        again("named", Components(optimizer=ADAMW))
    with pytest.raises(
        MismatchError,
        match=r"another optimizer \(torch.optim.adamw.AdamW there, torch.optim.adam.Adam here\)",
    ):
        again("own", Components(optimizer=torch.optim.Adam))
    with pytest.raises(MismatchError, match=r"another scheduler \(none there, torch.optim.lr_scheduler.One"):
        again("own", Components(optimizer=ADAMW, scheduler=one_cycle))
    with pytest.raises(RunError, match=r"training.optimizer \(sgd there, adamw here\)"):
        again("named", optimizer="adamw")
    groups = Net()
    with pytest.raises(MismatchError, match="parameter groups of the optimizer differ"):
        again("own", Components(optimizer=lambda parameters: two_groups(groups)), module=groups)


def stranger(parameters: Any) -> Optimizer:
    return AdamW(Net().parameters())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"optimizer": stranger}, "6 of 6 parameters that are not parameters of Net"),
        ({"optimizer": torch.optim.LBFGS}, "use strategy batch"),
        ({"optimizer": lambda parameters: 3}, "the function for optimizer returned 3"),
        ({"optimizer": two_groups}, "optimizer cannot be made of the module's parameters"),
        ({"optimizer": "adamw"}, 'give optimizer="adamw" as a setting'),
        ({"scheduler": "cosine"}, "scheduler must be a function"),
        ({"scheduler": StepLR}, "missing 1 required positional argument: 'step_size'"),
        ({"scheduler": lambda optimizer: None}, "the function for scheduler returned None"),
        ({"scheduler": partial(OneCycleLR, max_lr=1, total_steps=4)}, "cannot take another step"),
    ],
)
def test_what_is_no_optimiser_or_scheduler_is_refused(tmp_path: Path, given: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        train(opened(tmp_path / "run", components=Components(**given)))


def test_plateau_needs_validation(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no validation"):
        train(opened(tmp_path / "run", components=Components(scheduler=plateau), validation=None))
