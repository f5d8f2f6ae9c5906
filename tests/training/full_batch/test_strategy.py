"""Whole-set optimisation of recipes and modules in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from tests.support.api.train import train_with
from tests.support.resume_check import check_resume
from tests.support.training.batch_runs import (
    RECIPE,
    events,
    hard_to_tell,
    regression,
    same,
    trained,
)
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import cotswold
from cotswold import recipe as recipes
from cotswold import training
from cotswold.data import Store
from cotswold.errors import DivergedError, RecipeError, RunError, UserError
from cotswold.optim import Dot
from cotswold.run import Stop
from cotswold.shards.runtime.work import PortionSum, TensorSlot
from cotswold.training.data import stores as stores_of_runs
from cotswold.training.data.indexed import StoreSamples, write_rows
from cotswold.training.full_batch.local import EvaluationProgress, FullBatchObjective
from cotswold.training.full_batch.objective import (
    DenseObjective,
    LayerObjective,
    ModuleObjective,
    objective_from_recipe,
)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("training.method=cg", "training.line_search=bunyip", "training.portion_size=4"),
        ("training.method=cg", "training.beta=hager-zhang", "training.line_search=approximate"),
        ("training.sample_fraction=0.5", "training.cycle_iterations=2", "training.deterministic=true"),
        ("network.output=tanh", "objective.loss=squared_error", "objective.target_low=-1"),
    ],
)
def test_a_run_lowers_its_objective_and_goes_on_with_the_same_bits_after_a_stop(
    overrides: tuple[str, ...], blobs: Path, stores: Path, tmp_path: Path
) -> None:
    check_resume(blobs, tmp_path, overrides=overrides, stores=stores)
    steps = events(tmp_path / "whole", "step")
    assert len(steps) == 12
    assert float(str(steps[-1]["loss"])) < 0.7 * float(str(steps[0]["loss"]))


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("training.method=cg",),
        ("training.method=cg", "training.sample_fraction=0.5", "training.cycle_iterations=2"),
    ],
)
def test_a_stop_inside_an_iteration_loses_no_bit(
    overrides: tuple[str, ...], blobs: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained(blobs, tmp_path / "whole", stores, *overrides)
    calls, add = 0, DenseObjective.add
    for part in range(40):
        stop, calls = Stop(), 0

        def counted(
            self: DenseObjective, samples: list[int], gradient: Tensor | None, stop: Stop = stop
        ) -> PortionSum:
            nonlocal calls
            calls += 1
            if calls == 23:  # in the middle of an evaluation
                stop.signal = 15
            return add(self, samples, gradient)

        monkeypatch.setattr(DenseObjective, "add", counted)
        last = trained(
            blobs if part == 0 else None, tmp_path / "cut", stores, *overrides * (part == 0), stop=stop
        )
        if stop.signal is None:
            break
    assert part > 2
    assert same(whole, last)


def test_fully_connected_recipes_run_on_dense_kernels_and_agree_with_autograd(
    blobs: Path, stores: Path
) -> None:
    for overrides in (
        [],
        ["objective.loss=bce_with_logits"],
        ["objective.loss=squared_error"],
        [
            "objective.loss=squared_error",
            "network.output=tanh",
            "objective.target_low=-0.8",
            "objective.target_high=0.8",
        ],
        ["network.layers=[]"],
    ):
        found = training.open_store(recipes.load(blobs, overrides), stores)
        made = stores_of_runs.with_store_shape(recipes.load(blobs, overrides), found)
        dense = objective_from_recipe(made, found)
        assert isinstance(dense, DenseObjective)
        one, other = (torch.zeros_like(dense.parameters) for _ in range(2))
        by_kernels = dense.add(range(50), one)
        by_autograd = LayerObjective.add(dense, range(50), other)
        assert by_kernels.value == pytest.approx(by_autograd.value, rel=1e-5)
        assert by_kernels.details == by_autograd.details
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_flops_are_counted_as_the_paper_does(blobs: Path, stores: Path) -> None:
    found = recipes.load(blobs)
    store = training.open_store(found, stores)
    n_i, n_h, n_o = 5, 7, 3
    expected = 2 * (n_i + n_o) * n_h, 4 * n_i * n_h + 6 * n_h * n_o
    assert objective_from_recipe(stores_of_runs.with_store_shape(found, store), store).flops == expected


def test_the_account_is_that_of_the_evaluations(blobs: Path, stores: Path, tmp_path: Path) -> None:
    trained(blobs, tmp_path / "run", stores)
    (end,), steps = events(tmp_path / "run", "end"), events(tmp_path / "run", "step")
    samples = int(str(events(tmp_path / "run", "start")[0]["samples"]))
    assert end["samples"] == samples * int(str(steps[-1]["evaluations"]))
    assert end["flops"] == int(str(end["samples"])) * (4 * 5 * 7 + 6 * 7 * 3)


class Line(ModuleObjective):
    """An objective that counts samples."""

    def __init__(self, count: int) -> None:
        self.count, self.seen = count, list[int]()
        self._point = torch.zeros(3)

    parameters = property(lambda self: self._point)
    layout = property(lambda self: [TensorSlot.of_shape("point", (3,))])
    samples = property(lambda self: self.count)
    flops = property(lambda self: (1, 3))

    def add(self, samples: object, gradient: Tensor | None) -> PortionSum:
        numbers = list(samples)  # type: ignore[call-overload]  # a sequence of tensors
        self.seen += numbers
        if gradient is not None:
            gradient += torch.tensor(
                [sum(0.1 * each for each in numbers), len(numbers), float(self._point[0])]
            )
        return PortionSum(float(sum(numbers)), len(numbers), {})


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("count", [1, 31, 32, 33, 331])
def test_every_pattern_counts_once(count: int, deterministic: bool) -> None:
    work = Line(count)
    whole = FullBatchObjective(work, portion=32, deterministic=deterministic)
    whole.vectors.make("p")[0].fill_(5.0)
    found = whole.evaluate("p", "g", after=[Dot("g", "g")])
    assert sorted(work.seen) == list(range(count)) and found.samples == count
    assert found.value == pytest.approx((count - 1) / 2)
    gradient = whole.vectors["g"][0]
    assert gradient[1] == pytest.approx(1.0) and float(gradient[2]) == pytest.approx(
        5.0 * -(-count // 32) / count
    )
    assert float(work.parameters[0]) == 0.0  # the point that was set aside is back


def test_a_fraction_counts_one_set_until_another_is_drawn() -> None:
    work = Line(1000)
    whole = FullBatchObjective(work, portion=10, fraction=0.3, seed=4)
    seen = []
    for samples in (None, "draw 1", "part", None):
        work.seen = []
        samples = whole.part("draw 1", 0.2) if samples == "part" else samples
        found = whole.evaluate("x", None, sample_set=samples)
        assert found.samples == len(set(work.seen)) == len(work.seen)
        seen.append((found.sample_set, set(work.seen)))
    assert seen[0] == seen[1] and len(seen[0][1]) == 300
    assert len(seen[2][1]) == 60 and seen[2][1] < seen[0][1]
    assert seen[3][0] == "draw 2" and seen[3][1] != seen[0][1]


def test_recorded_sets_are_counted_again(blobs: Path, stores: Path, tmp_path: Path) -> None:
    work = Line(100)
    whole = FullBatchObjective(work, portion=10, fraction=0.5, recorded=["1,3-4", "0"])
    assert [whole.evaluate("x", "g").samples for _ in range(3)] == [30, 10, 50]


@pytest.mark.parametrize(
    "fraction", ["0.5", "0.9"]
)  # with 0.9 some draws count all, for the last portion is small
def test_what_a_fraction_counted_in_one_process_can_be_counted_again(
    fraction: str, blobs: Path, stores: Path, tmp_path: Path
) -> None:
    words = (
        f"training.sample_fraction={fraction}",
        "training.cycle_iterations=1",
        "training.portion_size=120",
        "data.validation=0.27",
    )
    first = trained(blobs, tmp_path / "first", stores, *words, "training.seed=1")
    drawn = [event["portions"] for event in events(tmp_path / "first", "subset")]
    assert len(drawn) == 12 and len(set(map(str, drawn))) > 1
    place = tmp_path / "again"
    again = trained(
        blobs, place, stores, *words, "training.seed=1", f"cluster.replay_run={tmp_path / 'first'}"
    )
    assert [event["portions"] for event in events(place, "subset")] == drawn
    assert same(first, again)
    with pytest.raises(RunError, match=r"cluster\.replay_run \(None there"):  # what has begun otherwise
        trained(None, tmp_path / "first", stores, f"cluster.replay_run={place}")


def test_a_run_that_counted_all_patterns_has_none_to_be_counted_again(
    blobs: Path, stores: Path, tmp_path: Path
) -> None:
    trained(blobs, tmp_path / "whole", stores, "training.max_iterations=2")
    with pytest.raises(RunError, match="every evaluation counted all samples"):
        trained(
            blobs,
            tmp_path / "again",
            stores,
            "training.sample_fraction=0.5",
            f"cluster.replay_run={tmp_path / 'whole'}",
        )


def test_an_evaluation_that_is_given_up_draws_its_patterns_again() -> None:
    def give_up(share: EvaluationProgress) -> None:
        raise KeyboardInterrupt

    work = Line(100)
    whole = FullBatchObjective(work, portion=10, fraction=0.5, on_progress=give_up)
    with pytest.raises(KeyboardInterrupt):
        whole.evaluate("x", "g")
    whole.on_progress = lambda share: None
    assert whole.evaluate("x", "g").sample_set == "draw 1" and whole.sets.draws == 1
    replayed = FullBatchObjective(work, portion=10, fraction=0.5, recorded=["1,3-4"], on_progress=give_up)
    with pytest.raises(KeyboardInterrupt):
        replayed.evaluate("x", "g")
    replayed.on_progress = lambda share: None
    assert replayed.evaluate("x", "g").samples == 30


def test_rows_in_a_file_are_those_in_memory(blobs: Path, stores: Path, tmp_path: Path) -> None:
    store: Store = training.open_store(recipes.load(blobs), stores)
    write_rows(store, "train", tmp_path)
    before = (tmp_path / "train.rows").stat().st_mtime_ns
    write_rows(store, "train", tmp_path)  # is there already
    assert (tmp_path / "train.rows").stat().st_mtime_ns == before
    one, other = (StoreSamples(store, "train", rows).batch([5, 0, 200]) for rows in (None, tmp_path))
    assert torch.equal(one.inputs, other.inputs)
    assert one.targets is not None and other.targets is not None and torch.equal(one.targets, other.targets)


def test_weight_decay_is_minimised_with_the_loss(tmp_path: Path) -> None:
    run = regression(tmp_path, weight_decay=0.1)
    module = nn.Linear(5, 3)
    optimiser = cotswold.optim.LBFGS(module.parameters(), weight_decay=0.1, max_iterations=30)
    inputs, targets = hard_to_tell()

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = nn.functional.cross_entropy(module(inputs), targets)
        value.backward()  # type: ignore[no-untyped-call]  # of torch
        return value

    loss = optimiser.step(closure)
    last = [event for event in run.events if event["kind"] == "step"][-1]
    assert last["loss"] == pytest.approx(float(loss), rel=1e-6)
    assert last["data_loss"] == pytest.approx(closure().item(), rel=1e-4)


def test_without_weight_decay_the_bits_stay_and_no_data_loss_is_told(tmp_path: Path) -> None:
    runs = [
        regression(tmp_path / f"{name}", max_iterations=5, **words)
        for name, words in (("a", {}), ("b", {"weight_decay": 0.0}))
    ]
    told = [[e["loss"] for e in run.events if e["kind"] == "step"] for run in runs]
    assert told[0] == told[1]
    assert not any("data_loss" in event for run in runs for event in run.events)


class Shaken(nn.Linear):
    """A layer that draws random numbers, in training and evaluation."""

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(input), 0.5)


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Samples with new noise each time."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.randn(3), torch.tensor(index % 2)


@pytest.mark.parametrize(
    ("module", "data", "words"),
    [
        (
            Shaken(3, 2),
            (torch.ones(40, 3), torch.arange(40) % 2),
            "Shaken gave other outputs when the same 40",
        ),
        (nn.Linear(3, 2), Noisy(), "the data set gave other samples when the same 40"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_drawn_at_each_evaluation_is_found_at_the_start(
    module: nn.Module, data: Dataset[tuple[Tensor, Tensor]], words: str, workers: int, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        cotswold.train(
            module,
            data,
            directory=tmp_path,
            loss="cross_entropy",
            strategy=cotswold.FullBatch(workers=workers),
        )


def likelihood(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return a loss that torch computes in one type only."""
    return nn.functional.binary_cross_entropy(outputs.sigmoid(), targets)


@pytest.mark.parametrize("strategy", ["batch", "supervised"])
@pytest.mark.parametrize(
    ("samples", "targets"), [(torch.float64, torch.float32), (torch.float32, torch.float64)]
)
def test_data_of_another_type_than_the_module_are_named(
    strategy: Literal["batch", "supervised"], samples: torch.dtype, targets: torch.dtype, tmp_path: Path
) -> None:
    data = torch.ones(40, 3, dtype=samples), torch.ones(40, 2, dtype=targets)
    what = "samples" if samples == torch.float64 else "targets"
    with pytest.raises(UserError, match=f"the {what} are float64, but the parameters of Linear are float32"):
        cotswold.train(nn.Linear(3, 2), data, directory=tmp_path, loss=likelihood, strategy=strategy)


def test_targets_that_cross_entropy_would_leave_out_are_refused(tmp_path: Path) -> None:
    targets = torch.arange(40) % 2
    targets[7] = -100
    with pytest.raises(UserError, match="1 targets are -100, which the loss ignores"):
        cotswold.train(
            nn.Linear(3, 2),
            (torch.ones(40, 3), targets),
            directory=tmp_path,
            loss="cross_entropy",
            strategy="batch",
        )


@pytest.mark.parametrize("number", [0, 3])
def test_samples_of_one_class_are_refused_whatever_its_number(number: int, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(50, 5)).astype(np.float32)
    np.savez(tmp_path / "one.npz", x=rows, labels=np.full(50, number))
    (tmp_path / "one.toml").write_text(RECIPE.format(source=tmp_path / "one.npz"))
    with pytest.raises(RecipeError, match=f"all 40 training vectors.*of one class, '{number}'; strategy"):
        training.open_job(tmp_path / "one.toml", tmp_path / "run", stores=tmp_path / "stores")
    assert not (tmp_path / "run").exists()


def test_a_run_says_that_nothing_is_left_for_validation(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "few.npz", x=np.ones((3, 5), np.float32), labels=np.arange(3))
    (tmp_path / "few.toml").write_text(RECIPE.format(source=tmp_path / "few.npz"))
    run = cotswold.train_recipe(tmp_path / "few.toml", tmp_path / "run", stores=tmp_path / "stores")
    said = "no validation split: data.validation = 0.2 of 3 samples is less than one"
    assert said in str(run.events[0]["notes"])


def test_a_recipe_without_a_network_is_told_of_one_without_hidden_layers(tmp_path: Path) -> None:
    (tmp_path / "none.toml").write_text(
        'name = "none"\ndata = { type = "vectors", source = "x.npy" }\ntraining = { strategy = "batch" }\n'
    )
    with pytest.raises(RecipeError, match=r"network is missing; .*\[network\] with layers = \[\]"):
        recipes.load(tmp_path / "none.toml")


def test_an_objective_that_is_no_number_ends_with_what_to_do(tmp_path: Path) -> None:
    module = nn.Linear(3, 2)
    nn.init.constant_(module.weight, 3e38)
    with pytest.raises(DivergedError, match="objective is nan"):
        cotswold.train(
            module,
            (torch.full((20, 3), 10.0), torch.zeros(20).long()),
            directory=tmp_path,
            loss="cross_entropy",
            strategy="batch",
        )


def small() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def test_a_module_is_trained_like_torch_would(tmp_path: Path) -> None:
    numbers = torch.Generator().manual_seed(3)
    inputs = torch.randn(70, 3, generator=numbers, dtype=torch.float64)
    targets = inputs[:, :2] ** 2
    module = small()
    run = cotswold.train(
        module,
        (inputs, targets),
        directory=tmp_path / "a",
        loss="squared_error",
        strategy=cotswold.FullBatch(max_iterations=40, portion_size=16),
    )
    loss = nn.functional.mse_loss(module(inputs), targets, reduction="sum").item() / 70
    (*_, last) = (event for event in run.events if event["kind"] == "step")
    assert loss == pytest.approx(last["loss"], rel=1e-9)
    other = small()
    optimiser = torch.optim.LBFGS(other.parameters(), max_iter=40, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = nn.functional.mse_loss(other(inputs), targets, reduction="sum") / 70
        value.backward()  # type: ignore[no-untyped-call]  # of torch
        return value

    optimiser.step(closure)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    assert loss < 1.5 * closure().item()
    again = small()
    cotswold.train(
        again,
        (inputs, targets),
        directory=tmp_path / "a",
        loss="squared_error",
        resume=True,
        strategy=cotswold.FullBatch(max_iterations=41),
    )
    assert nn.functional.mse_loss(again(inputs), targets, reduction="sum").item() / 70 < loss


def test_validation_judges_the_point_at_which_an_iteration_ended(tmp_path: Path) -> None:
    numbers = torch.Generator().manual_seed(3)
    inputs = torch.randn(70, 3, generator=numbers, dtype=torch.float64)
    data = inputs, inputs[:, :2] ** 2
    run = cotswold.train(
        small(),
        data,
        directory=tmp_path,
        loss="squared_error",
        validation=data,
        strategy=cotswold.FullBatch(max_iterations=9, portion_size=16),
    )
    steps, judged = (
        [float(str(event["loss"])) for event in run.events if event["kind"] == kind]
        for kind in ("step", "validation")
    )
    assert judged[1:] == pytest.approx(steps, rel=1e-9) and judged[0] > steps[0]


class Endless(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        raise AssertionError("it is refused before it is read")


@pytest.mark.parametrize(
    ("module", "data", "settings", "said"),
    [
        (
            nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)),
            None,
            {},
            "drops random outputs at each evaluation",
        ),
        (nn.LSTM(3, 2, num_layers=2, dropout=0.5), None, {}, "drops random outputs at each evaluation"),
        (nn.MultiheadAttention(4, 2, dropout=0.1), None, {}, "drops random outputs at each evaluation"),
        (nn.TransformerEncoderLayer(4, 2, dropout=0.1), None, {}, "drops random outputs at each evaluation"),
        (nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)), None, {}, "normalises over a batch"),
        (nn.Linear(3, 2), Endless(), {}, "an IterableDataset .Endless. .* give a map-style"),
        (nn.Linear(3, 2), None, {"batch_size": 5}, "batch_size belongs to"),
        (nn.Linear(3, 2), None, {"epochs": 5}, "epochs belongs to"),
        (nn.Linear(3, 2), None, {"method": "cg", "history_size": 5}, "history_size is for method"),
        (nn.Linear(3, 2), None, {"line_search": "bunyip"}, "for method"),
        (nn.Linear(3, 2), None, {"servers": 2}, "one worker needs no servers"),
    ],
)
def test_what_cannot_be_trained_over_the_whole_set_is_refused(
    module: nn.Module, data: object, settings: dict[str, object], said: str, tmp_path: Path
) -> None:
    given = (torch.zeros(9, 3), torch.zeros(9).long()) if data is None else data
    words = {"loss": "cross_entropy", "strategy": "batch", **settings}
    with pytest.raises(UserError, match=said):
        train_with(module, given, directory=tmp_path / "run", **words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("network.layers.1={type='dropout'}", "is random in each evaluation"),
        ("network.layers.1={type='normalisation'}", "normalises over a batch"),
        ("mesh.grid=auto", "auto is not possible"),
        ("training.device=mps", "computes on the CPU or on CUDA devices"),
        ("training.cycle_iterations=3", "cycle_iterations needs a sample_fraction below 1"),
        ("cluster.ray_address=''", "ray_address is empty; write HOST:PORT"),
        ("price.max_dollars=3", "needs price.rent_dollars_per_hour"),
        ("network.output=tanh", 'requires layers and objective.loss = "squared_error"'),
        ("objective.target_high=2", 'are for loss "squared_error"'),
        ("training.sample_fraction=0", "training.sample_fraction"),
    ],
)
def test_recipes_that_make_no_sense_over_the_whole_set_are_refused(
    override: str, said: str, blobs: Path
) -> None:
    with pytest.raises(RecipeError, match=said):
        recipes.load(blobs, [override])


def test_a_data_loader_gives_its_samples_by_number(tmp_path: Path) -> None:
    inputs = torch.randn(50, 3)
    loader = DataLoader(torch.utils.data.TensorDataset(inputs, (inputs[:, 0] > 0).long()), 7, shuffle=True)
    run = cotswold.train(
        nn.Linear(3, 2),
        loader,
        directory=tmp_path,
        loss="cross_entropy",
        validation=0.2,
        strategy=cotswold.FullBatch(max_iterations=3),
    )
    assert [event["subset_samples"] for event in run.events if event["kind"] == "step"] == [40] * 3
