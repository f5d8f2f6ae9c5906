"""Precision, compilation and refusals of strategy supervised, from recipes and modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.training.runs import bits, events, finish, losses, resumed, started, stop_after
from tests.support.training.small_recipes import LAYERS, supervised
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import cotswold
from cotswold.analysis import Classification
from cotswold.errors import DivergedError, RecipeError, UserError
from cotswold.recipe import explain, load, parse
from cotswold.recipe.schema import SupervisedTraining
from cotswold.run import Stop
from cotswold.training import ModuleJob, open_module_job, trained_layers
from cotswold.training.precision import Precision

MORE = """
[[network.layers]]
type = "pool"
kind = "l2"
kernel_size = 2

[[network.layers]]
type = "normalisation"
kind = "contrast"
size = 3
"""
"""Layers whose kernels compute in float32 only."""


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_a_mixed_run_of_a_recipe_is_near_that_of_float32_and_is_evaluated_alike(
    precision: str, images: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = f'optimizer = "adamw"\nprecision = "{precision}"\naccumulate = 2'
    recipe = supervised(images, layers=LAYERS + MORE, more=more)
    whole = finish(started(recipe, tmp_path / "whole", stores))
    plain = finish(started(recipe.replace(precision, "32"), tmp_path / "plain", stores))
    near = 0.05 if precision == "bf16-mixed" else 0.5  # float16 skips updates
    assert losses(whole) == pytest.approx(losses(plain), rel=near) and losses(whole) != losses(plain)
    assert not stop_after(started(recipe, tmp_path / "parts", stores), 5, monkeypatch)
    assert bits(finish(resumed(tmp_path / "parts", stores))) == bits(whole)
    network = trained_layers(whole).network
    x = torch.randn(4, 3, 16, 16)
    mixed = network(x)
    network.precision = "32"
    exact = network(x)
    assert mixed.dtype == torch.float32 and not mixed.equal(exact)
    torch.testing.assert_close(mixed, exact, rtol=0.1, atol=0.05)
    found = cotswold.evaluate(whole.path, stores=stores, progress=False)
    assert isinstance(found, Classification)
    assert [found.accuracy] == [
        event["accuracy"] for event in events(whole, "validation") if event["step"] == found.step
    ]
    assert len(cotswold.predict(whole.path, images, progress=False)) == 60


def data() -> TensorDataset:
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(3))
    return TensorDataset(x, (x[:, 0] > 0).long())


def job(run: Path, module: nn.Module, **words: Any) -> ModuleJob:
    loss = words.pop("loss", "cross_entropy")
    settings = SupervisedTraining(**{"batch_size": 8, "epochs": 4, "threads": 1, **words})
    return open_module_job(module, data(), loss=loss, directory=run, settings=settings, validation=0.25)


def test_an_update_that_overflows_is_skipped_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = nn.Linear(4, 2)
    begin = Precision.__init__

    def begun(self: Precision, *words: Any) -> None:
        begin(self, *words)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)

    monkeypatch.setattr(Precision, "__init__", begun)
    opened = job(tmp_path / "run", module, precision="16-mixed", clip_norm=1.0, epochs=20)
    opened.train(lambda event: None, Stop())
    steps = events(opened.run, "step")
    skipped = [float(str(event["skipped_steps"])) for event in steps]
    assert skipped[0] == 1 and 0.0 in skipped
    after = steps[skipped.index(0.0)]
    assert "gradient_norm" not in steps[0] and float(str(after["gradient_norm"])) > 0
    assert losses(opened.run)[-1] < losses(opened.run)[0]


class Overflowing(torch.autograd.Function):
    """The identity, with an infinite gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Tensor:
        return torch.full_like(gradients[0], torch.inf)


class Infinite(nn.Linear):
    """A linear layer with infinite gradients and finite outputs."""

    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = Overflowing.apply(super().forward(input))  # type: ignore[no-untyped-call]  # torch's
        return out


def test_gradients_that_overflow_at_every_scale_end_the_run(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"at every scale of the loss; set training\.precision"):
        job(tmp_path / "run", Infinite(4, 2), precision="16-mixed", epochs=50).train(lambda e: None, Stop())


def test_outputs_and_loss_of_a_mixed_run_are_float32_and_products_are_not(tmp_path: Path) -> None:
    seen: list[torch.dtype] = []
    module = nn.Linear(4, 2)
    module.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(outputs.dtype)
        return nn.functional.cross_entropy(outputs, targets)

    job(tmp_path / "run", module, precision="bf16-mixed", loss=loss).train(lambda event: None, Stop())
    assert {*seen} == {torch.bfloat16, torch.float32} and seen.count(torch.bfloat16) > 10
    assert module.weight.dtype == torch.float32


def test_parameters_of_another_type_are_refused_for_a_mixed_precision(tmp_path: Path) -> None:
    opened = job(tmp_path / "run", nn.Linear(4, 2).bfloat16(), precision="bf16-mixed")
    with pytest.raises(UserError, match=r"weight \(bfloat16\), bias \(bfloat16\) of Linear are not"):
        opened.train(lambda event: None, Stop())


@pytest.mark.slow
def test_a_compiled_network_is_that_of_an_uncompiled_run_and_goes_on_with_the_same_bits(
    images: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = supervised(
        images, layers='[[network.layers]]\ntype = "linear"\nfeatures = 8', more="compile=true"
    )
    whole = finish(started(recipe, tmp_path / "whole", stores))
    plain = finish(started(recipe.replace("compile=true", ""), tmp_path / "plain", stores))
    torch.testing.assert_close(losses(whole), losses(plain), rtol=1e-3, atol=1e-5)
    assert not stop_after(started(recipe, tmp_path / "parts", stores), 5, monkeypatch)
    assert bits(finish(resumed(tmp_path / "parts", stores))) == bits(whole)


@pytest.mark.slow
def test_a_module_is_compiled_with_its_hooks(tmp_path: Path) -> None:
    losses_of = []
    for compile in (False, True):
        torch.manual_seed(1)
        module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        opened = job(tmp_path / f"run{compile}", module, compile=compile)
        opened.train(lambda event: None, Stop())
        losses_of.append(losses(opened.run))
        assert events(opened.run, "end")[0]["flops"] != 0
    torch.testing.assert_close(*losses_of, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "key", "said"),
    [
        (
            "distbelief-downpour-vs-sandblaster",
            "optimizer",
            "strategy downpour has rules of its own",
        ),
        ("distbelief-downpour-vs-sandblaster", "precision", "servers add gradients in float32"),
        ("distbelief-speech", "optimizer", "methods of its own: set training.method"),
        ("distbelief-speech", "precision", "sums over the whole training set need float32"),
        ("demo", "optimizer", "stacks are trained by SGD in their own kernels"),
        ("demo", "precision", "the kernels of stacks compute in float32"),
    ],
)
def test_other_strategies_say_why_they_have_no_optimiser_or_precision(name: str, key: str, said: str) -> None:
    value = {"optimizer": "adamw", "precision": "bf16-mixed"}[key]
    with pytest.raises(RecipeError, match=said):
        load(name, [f"training.{key}={value}"])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            ["optimizer=adamw", "momentum=0.5"],
            'optimizer "adamw" has no momentum; .* use .*sgd, rmsprop, muon',
        ),
        (["betas=[0.5, 0.9]"], "The fields of sgd are learning_rate, weight_decay, momentum, nesterov"),
        (["optimizer=adamw", "betas=[0.5, 1.0]"], "training.betas"),
        (["optimizer=adamw", "betas=0.5"], r"training.betas must be \[first, second\], numbers"),
        (["optimizer=lamb"], 'training.optimizer must be "sgd", "adam"'),
        (["optimizer=3"], 'training.optimizer must be "sgd", "adam"'),
        (["momentum=0", "nesterov=true"], "nesterov needs a momentum above 0"),
        (["precision=16"], 'training.precision must be "32", "bf16-mixed" or "16-mixed"'),
        (["accumulate=0"], "training.accumulate must be an integer > 0"),
    ],
)
def test_contradictory_fields_are_refused(fields: list[str], said: str, images: Path) -> None:
    with pytest.raises(RecipeError, match=said):
        parse(supervised(images), "a test", [f"training.{each}" for each in fields])


def test_the_defaults_of_an_optimiser_are_written_and_explained(images: Path) -> None:
    adamw = parse(supervised(images, more='optimizer = "adamw"'))
    assert isinstance(adamw.training, SupervisedTraining)
    assert adamw.training.learning_rate == 0.001 and adamw.training.betas == (0.9, 0.999)
    assert parse(cotswold.recipe.dump(adamw)) == adamw
    given = parse(supervised(images, more='optimizer = "adamw"\nlearning_rate = 0.05'))
    assert parse(cotswold.recipe.dump(given)) == given != adamw
    assert 'optimizer = "sgd", "adam", "adamw"' in explain("optimizer")
