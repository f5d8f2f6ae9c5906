"""Exported files run without Cotswold, and agree with the network."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.demo_runs import DemoRuns
from torch import nn

import cotswold
from cotswold import training
from cotswold.errors import ExportError, RunError, UserError
from cotswold.recipe.schema import BatchTraining

NO_COTSWOLD = "assert not [each for each in sys.modules if each.partition('.')[0] == 'cotswold']"


def alone(program: str, *arguments: object) -> str:
    """Run a program in a new process that cannot import Cotswold; return what it prints."""
    text = textwrap.dedent(program)
    text = f"import sys\nsys.modules['cotswold'] = None\n{text}\ndel sys.modules['cotswold']\n{NO_COTSWOLD}\n"
    found = subprocess.run(
        [sys.executable, "-c", text, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def trained(folder: Path, module: nn.Module, inputs: torch.Tensor, outputs: int = 3) -> cotswold.Run:
    """Train a module for an iteration."""
    job = training.open_module_job(
        module,
        (inputs, torch.arange(len(inputs)) % outputs),
        loss="cross_entropy",
        directory=folder,
        settings=BatchTraining(max_iterations=1),
    )
    job.train(watch=lambda event: None, stop=cotswold.Stop())
    return cotswold.Run(folder)


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[cotswold.Run, nn.Module]:
    module = perceptron()
    return trained(tmp_path_factory.mktemp("plain") / "run", module, torch.randn(30, 4)), module.eval()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> DemoRuns:
    found = DemoRuns(tmp_path_factory.mktemp("demo"))
    found.write()
    for recipe, name in ((found.stacks_recipe, "stacks"), (found.layers_recipe, "layers")):
        job = training.open_job(recipe, found.path / name, stores=found.stores)
        job.train(watch=lambda event: None, stop=cotswold.Stop())
    return found


@pytest.mark.parametrize("name", ["model.pt2", "model.onnx"])
def test_a_network_that_was_trained_in_mixed_precision_is_exported_in_float32(
    demo: DemoRuns, tmp_path: Path, name: str
) -> None:
    run = cotswold.train_recipe(
        demo.layers_recipe,
        tmp_path / "run",
        stores=demo.stores,
        overrides={"training.precision": "bf16-mixed", "training.epochs": 1},
    )
    found = run.export(tmp_path / name)
    assert found.difference < 1e-5
    said = "trained in mixed precision (bf16-mixed); the exported weights are float32."
    assert any(said in note for note in found.notes) and said in run.card()
    tensors = run.export(tmp_path / "model.pt")
    assert tensors.description is not None and any(said in note for note in tensors.notes)
    assert json.loads(tensors.description.read_text())["precision"] == "bf16-mixed"
    dtypes = {each.dtype for each in torch.load(tensors.path).values() if each.is_floating_point()}
    assert dtypes == {torch.float32}
    plain = cotswold.Run(demo.path / "layers")
    assert "mixed precision" not in plain.card() + "".join(plain.export(tmp_path / "plain.pt").notes)


@pytest.mark.parametrize("name", ["stacks", "layers"])
def test_a_program_of_a_recipe_runs_without_cotswold(demo: DemoRuns, tmp_path: Path, name: str) -> None:
    run = cotswold.Run(demo.path / name)
    found = run.export(tmp_path / "model.pt2")
    assert found.notes == () and found.difference < 1e-5
    x = torch.randn(5, 3, 16, 16)
    with torch.no_grad():
        torch.save((x, run.network(x)), tmp_path / "expected.pt")
    said = alone(
        """
        import torch
        about = {"cotswold.json": ""}
        program = torch.export.load(sys.argv[1], extra_files=about).module()
        x, expected = torch.load(sys.argv[2])
        for samples in (1, 3, 5):
            torch.testing.assert_close(program(x[:samples]), expected[:samples], rtol=1e-4, atol=1e-4)
        print(about["cotswold.json"])
        """,
        found.path,
        tmp_path / "expected.pt",
    )
    about = json.loads(said)
    assert about["preparation"]["transform"]["preparation"]["size"] == [16, 16]
    assert about["inputs"] == [{"shape": [None, 3, 16, 16], "dtype": "float32"}]
    if name == "layers":
        assert about["preparation"]["classes"] == ["level", "upright"]
        assert about["loss"] == "cross_entropy"
    assert str(demo.path) not in said


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".safetensors"])
def test_tensors_of_torch_layers_load_without_cotswold(
    plain: tuple[cotswold.Run, nn.Module], tmp_path: Path, suffix: str
) -> None:
    run, module = plain
    found = run.export(tmp_path / f"model{suffix}", module=perceptron())
    assert found.notes == ()
    x = torch.randn(2, 4)
    with torch.no_grad():
        torch.save((x, module(x)), tmp_path / "expected.bin")
    said = alone(
        """
        import json
        import torch
        from torch import nn
        module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
        path = sys.argv[1]
        if path.endswith(".safetensors"):
            from safetensors import safe_open
            with safe_open(path, "pt") as file:
                module.load_state_dict({name: file.get_tensor(name) for name in file.keys()})
                about = json.loads(file.metadata()["cotswold"])
        else:
            module.load_state_dict(torch.load(path, weights_only=True))
            about = json.load(open(path + ".json"))
        x, expected = torch.load(sys.argv[2])
        assert torch.equal(module(x), expected)
        print(about["network"])
        """,
        found.path,
        tmp_path / "expected.bin",
    )
    assert "Linear(in_features=4, out_features=5" in said


def test_tensors_of_cotswold_layers_say_so(demo: DemoRuns, tmp_path: Path) -> None:
    run = cotswold.Run(demo.path / "layers")
    found = run.export(tmp_path / "model.pt")
    assert "layers.4 (LocallyConnected2d): only Cotswold has these layers" in found.notes[0]
    network = copy.deepcopy(run.network)
    with torch.no_grad():
        for each in network.parameters():
            each.zero_()
    network.load_state_dict(torch.load(found.path, weights_only=True))
    x = torch.randn(2, 3, 16, 16)
    assert torch.equal(network(x), run.network(x))


@pytest.mark.parametrize("name", ["stacks", "layers"])
def test_an_onnx_file_computes_the_same(demo: DemoRuns, tmp_path: Path, name: str) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    run = cotswold.Run(demo.path / name)
    found = run.export(tmp_path / "model.onnx")
    model = onnx.load(found.path)
    x = torch.randn(4, 3, 16, 16)
    (got,) = ReferenceEvaluator(model).run(None, {"input": x.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(np.asarray(got), run.network(x).numpy(), rtol=1e-4, atol=1e-4)  # a tensor
    about = json.loads(next(each.value for each in model.metadata_props if each.key == "cotswold"))
    assert about["strategy"] == ("greedy" if name == "stacks" else "supervised")
    assert [each.domain for each in model.opset_import if each.domain not in ("", "ai.onnx")] == []


class Bessel(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.special.bessel_j0(x)
        return found


class Own(nn.Module):
    """A program that calls an operation of Cotswold."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from cotswold import ops
        from cotswold.geometry import Smoothing

        found: torch.Tensor = ops.l2_pool(x[:, :, None, None], Smoothing(1)).flatten(1)
        return found


class Chooser(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if float(x.sum()) > 0 else -x


class FixedBatch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(4, -1, 4).reshape(-1, 4)


class Noise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


def with_layer(layer: nn.Module, tmp_path: Path) -> tuple[cotswold.Run, nn.Module]:
    """A run of a network with a layer that makes an export difficult; the layer is added after training."""
    run = trained(tmp_path / "run", perceptron(), torch.randn(12, 4))
    network = perceptron()
    network.insert(0, layer)
    names = {f"{int(name[0]) + 1}{name[1:]}": name for name in perceptron().state_dict()}

    class Renamed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.network(x)
            return found

        def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]  # a test
            return {names[name]: each for name, each in self.network.state_dict().items()}

    return run, Renamed()


def test_onnx_names_the_layer_that_it_cannot_express(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    run, module = with_layer(Bessel(), tmp_path)
    words = r"layer network\.0 \(Bessel\) cannot be exported to ONNX, which has no operator for \S*bessel_j0"
    with pytest.raises(ExportError, match=words):
        run.export(tmp_path / "model.onnx", module=module, example=torch.randn(2, 4))
    assert not list(tmp_path.glob("model*"))
    run.export(tmp_path / "model.pt2", module=module, example=torch.randn(2, 4))


def test_operations_of_other_packages_are_named(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    run, module = with_layer(Own(), tmp_path)
    found = run.export(tmp_path / "model.pt2", module=module, example=torch.randn(2, 4))
    assert "must first import the package of cotswold::images_last, cotswold::l2_pool" in found.notes[0]
    with pytest.raises(
        ExportError, match=r"ONNX has no operator for cotswold::images_last, cotswold::l2_pool; use \.pt2"
    ):
        run.export(tmp_path / "model.onnx", module=module, example=torch.randn(2, 4))


def test_a_layer_that_torch_cannot_export_is_named(tmp_path: Path) -> None:
    run, module = with_layer(Chooser(), tmp_path)
    with pytest.raises(ExportError, match=r"network\.0 \(Chooser\) cannot be exported by torch\.export"):
        run.export(tmp_path / "model.pt2", module=module, example=torch.randn(2, 4))


def test_a_network_that_fixes_its_batch_says_so(tmp_path: Path) -> None:
    run, module = with_layer(FixedBatch(), tmp_path)
    found = run.export(tmp_path / "model.pt2", module=module, example=torch.randn(4, 4))
    assert found.notes == ("the network fixes its batch: the program takes 4 samples",)


def test_a_network_that_draws_numbers_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    run, module = with_layer(Noise(), tmp_path)
    with pytest.raises(ExportError, match="differs from the network by"):
        run.export(tmp_path / "model.pt2", module=module, example=torch.randn(2, 4))
    assert not list(tmp_path.glob("model*"))


def test_the_callers_module_stays_unchanged(plain: tuple[cotswold.Run, nn.Module], tmp_path: Path) -> None:
    run, _ = plain
    module = perceptron()
    before = copy.deepcopy(module.state_dict())
    run.export(tmp_path / "model.pt2", module=module, example=torch.randn(1, 4))
    assert module.training
    assert all(torch.equal(each, before[name]) for name, each in module.state_dict().items())


def test_a_run_with_its_own_module_needs_no_other(
    plain: tuple[cotswold.Run, nn.Module], tmp_path: Path
) -> None:
    run = cotswold.Run(plain[0].path, module=perceptron)
    found = run.export(tmp_path / "new" / "model.pt2", example=torch.randn(1, 4))
    assert found.path.stat().st_size == found.bytes


def test_wrong_arguments_are_named(
    plain: tuple[cotswold.Run, nn.Module], demo: DemoRuns, tmp_path: Path
) -> None:
    run, _ = plain
    wrong: Any = nn.Linear
    (tmp_path / "taken.pt2").write_text("mine")
    layers, module, path = cotswold.Run(demo.path / "layers"), perceptron(), tmp_path / "model.pt2"
    cases: list[tuple[Any, str]] = [
        (lambda: run.export(tmp_path / "model.tflite"), r"has no known suffix; use one of \.pt2, \.pt"),
        (lambda: layers.export(tmp_path / "taken.pt2"), r"taken\.pt2 exists"),
        (lambda: layers.export(path, example=torch.zeros(1)), "omit module and example"),
        (lambda: run.export(path, module=module), "give an input of the module"),
        (lambda: run.export(path, example=torch.zeros(2, 4)), "or give it here: export"),
        (lambda: run.export(path, module=wrong, example=torch.zeros(2, 4)), "must be a torch.nn.Module"),
        (lambda: run.export(path, module=module, example=[]), "example must be a tensor"),
        (lambda: run.export(path, module=module, example=torch.zeros(0, 4)), "example must be a tensor"),
        (lambda: run.export(path, module=module, example=torch.zeros(2, 9)), "does not run on the example"),
        (lambda: run.export(wrong), "the file must be a path"),
    ]
    for call, words in cases:
        with pytest.raises(UserError, match=words):
            call()
    assert (tmp_path / "taken.pt2").read_text() == "mine"
    assert not path.exists()


def test_a_run_without_a_checkpoint_cannot_be_exported(demo: DemoRuns, tmp_path: Path) -> None:
    training.open_job(demo.layers_recipe, tmp_path / "new", stores=demo.stores)
    with pytest.raises(RunError, match="has no checkpoint yet"):
        cotswold.Run(tmp_path / "new").export(tmp_path / "model.pt2")
