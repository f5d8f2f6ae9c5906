"""`cotswold.Run`: inspection of a run, also in a notebook."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.api.conftest import Desk

import cotswold
from cotswold.errors import RunError, UserError
from cotswold.ui import display


def test_a_run_says_what_and_where_it_is(desk: Desk) -> None:
    run = desk.stacks
    assert repr(run) == f"<cotswold.Run '{run.path}': finished>"
    assert run.recipe.name == "small"
    assert run.loss == [event["loss"] for event in run.events if event["kind"] == "step"][-1]
    assert [path.parent for path in run.checkpoints] == [run.path / "checkpoints"] * len(run.checkpoints)


def test_a_run_that_has_only_begun_has_no_loss_and_no_network(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_bytes((desk.stacks.path / "recipe.toml").read_bytes())
    (tmp_path / "run.json").write_bytes((desk.stacks.path / "run.json").read_bytes())
    run = cotswold.Run(tmp_path)
    assert (run.status, run.loss, run.events, run.checkpoints) == ("unfinished", None, [], [])
    assert "unfinished" in run._repr_html_()
    with pytest.raises(RunError, match="no checkpoint yet"):
        run.network
    with pytest.raises(RunError, match="is not the directory of a run"):
        cotswold.Run(tmp_path / "nothing")


def test_a_network_is_read_once_as_long_as_there_is_no_newer_checkpoint(desk: Desk) -> None:
    run = desk.stacks
    assert run.network is run.network
    assert not any(parameter.requires_grad for parameter in desk.layers.network.parameters())


def test_a_notebook_shows_a_run_with_a_curve_of_every_phase(desk: Desk) -> None:
    shown = desk.stacks._repr_html_()
    assert shown.count("<polyline") == 2 and "stack 2: loss" in shown
    assert "small" in shown and "finished" in shown and str(desk.stacks.path) in shown


def test_curves_and_filters_are_figures_without_a_backend(desk: Desk) -> None:
    assert len(desk.stacks.curves().axes) == 2
    assert len(desk.stacks.filters(2, count=9).axes) == 9
    assert desk.layers.curves().axes
    with pytest.raises(RunError, match="is a run of layers"):
        desk.layers.filters()
    with pytest.raises(UserError, match="stack 3 does not exist"):
        desk.stacks.filters(3)


class FakeNotebook(ModuleType):
    """The used parts of IPython in a notebook kernel: outputs that can be replaced."""

    def __init__(self) -> None:
        super().__init__("IPython.display")
        self.outputs: list[str] = []

    @staticmethod
    def HTML(page: str) -> str:  # noqa: N802  # IPython's name
        return page

    def display(self, page: str, *, display_id: bool) -> Any:
        assert display_id
        self.outputs.append(page)
        return Output(self.outputs, len(self.outputs) - 1)


class Output:
    def __init__(self, outputs: list[str], at: int) -> None:
        self.outputs, self.at = outputs, at

    def update(self, page: str) -> None:
        self.outputs[self.at] = page


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> FakeNotebook:
    fake = FakeNotebook()
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    monkeypatch.setattr(display, "in_notebook", lambda: True)
    return fake


def test_training_in_a_notebook_fills_one_output_with_lines_and_bars(
    desk: Desk, tmp_path: Path, notebook: FakeNotebook, capfd: pytest.CaptureFixture[str]
) -> None:
    cotswold.train_recipe(desk.stacks_recipe, tmp_path / "run", stores=desk.stores)
    page = notebook.outputs[-1]
    assert page.count("<progress") == 2 and 'value="14" max="14"' in page
    assert "stack 1: 46,656 weights, 3 x 16 x 16 -&gt; 3 x 12 x 12" in page and "finished: " in page
    assert capfd.readouterr() == ("", "")


def test_counting_in_a_notebook_is_a_bar(desk: Desk, notebook: FakeNotebook) -> None:
    cotswold.features(desk.stacks, desk.images)
    assert "features: 60 of 60 images" in notebook.outputs[-1]


def test_a_notebook_can_be_kept_quiet(desk: Desk, notebook: FakeNotebook) -> None:
    cotswold.features(desk.stacks, desk.images, progress=False)
    assert notebook.outputs == []


def test_a_shell_of_ipython_on_a_terminal_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    assert not display.in_notebook()
