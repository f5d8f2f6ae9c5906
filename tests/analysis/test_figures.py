"""Figures for notebooks, which leave matplotlib's global state unchanged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike

from cotswold.analysis.figures import curves, filters
from cotswold.analysis.images import signed
from cotswold.errors import UserError
from cotswold.nn import SparseAutoencoderStack, StackNetwork
from cotswold.recipe import parse
from cotswold.run import Event, RunDirectory, read_events

VECTORS = """
name = "vectors"
data = { type = "vectors", source = "x.npy", features = 4 }
network = { stacks = [{ kernel_size = 1, block = [1, 1], channels = 6, pool = 1, norm = 1 }] }
training = { strategy = "greedy" }
"""


def values(drawn: ArrayLike) -> list[float]:
    return [float(each) for each in np.asarray(drawn)]


def test_a_stack_has_one_pair_of_axes_with_training_and_validation(run: RunDirectory) -> None:
    (axes,) = curves(run).axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "objective")
    assert axes.get_title().startswith("Stack 1: ") and "90 → 45" in axes.get_title()
    training, validation = axes.get_lines()
    assert (training.get_label(), validation.get_label()) == ("training", "validation")
    assert values(training.get_xdata()) == list(range(1, 30))
    assert values(training.get_ydata()) == [100 / step for step in range(1, 30)]
    assert values(validation.get_xdata()) == [0, 29] and values(validation.get_ydata()) == [90, 45]


def test_a_long_run_is_drawn_with_as_many_points_as_can_be_seen() -> None:
    (axes,) = curves(step(at, loss=float(at)) for at in range(1, 5001)).axes
    (line,) = axes.get_lines()
    x, y = values(line.get_xdata()), values(line.get_ydata())
    assert len(x) == len(y) <= 240
    assert x[-1] == 5000 and np.isclose(np.mean(y), 2500.5, rtol=0.01)


def step(at: int, stack: int = 0, **values: float) -> Event:
    return {"kind": "step", "phase": stack, "phase_step": at, **values}


def test_every_metric_of_validation_has_axes_of_its_own() -> None:
    begun: Event = {"kind": "phase_start", "phase": "layers"}
    known = {"training_seconds": 3.0, "validation_seconds": 1.0, "evaluations": 2, "flops": 9}
    events: list[Event] = [begun]
    for at in (0, 10):
        told = {"loss": 2.0 - at / 10, "accuracy": 0.5, "macro_f1": at / 20, "own / metric": 3.0}
        events.append(
            {"kind": "validation", "phase": "layers", "step": at, "phase_step": at, **known, **told}
        )
    found = {axes.get_ylabel(): axes for axes in curves(events).axes}
    assert list(found) == ["loss", "accuracy", "macro f1", "own / metric"]
    (line,) = found["macro f1"].get_lines()
    assert (values(line.get_xdata()), values(line.get_ydata())) == ([0, 10], [0.0, 0.5])
    assert found["macro f1"].get_title() == "Macro f1, final validation value 0.5"


def test_steps_are_whole_numbers_on_the_axis_of_a_short_run() -> None:
    (axes,) = curves(step(at, loss=1 / at) for at in range(1, 11)).axes
    assert all(tick == round(tick) for tick in axes.get_xticks())


def test_every_stack_of_a_run_has_axes_of_its_own() -> None:
    drawn = curves(step(at, stack, loss=float(10 * stack + at)) for stack in range(5) for at in (1, 2))
    assert [axes.get_title() for axes in drawn.axes] == [f"Stack {number}" for number in range(1, 6)]
    assert [values(axes.get_lines()[0].get_ydata()) for axes in drawn.axes] == [
        [10.0 * stack + 1, 10.0 * stack + 2] for stack in range(5)
    ]


def test_a_supervised_run_has_axes_for_loss_and_accuracy() -> None:
    events: list[Event] = [{"kind": "start"}, {"kind": "phase_start", "phase": "layers", "parameters": 7}]
    events += [step(at, loss=1 / at, accuracy=at / 4) for at in (1, 2, 3)]
    events.append({"kind": "validation", "phase_step": 3, "loss": 0.5, "accuracy": 0.6})
    loss, accuracy = curves(events).axes
    assert (loss.get_ylabel(), accuracy.get_ylabel()) == ("loss", "accuracy")
    assert values(accuracy.get_lines()[0].get_ydata()) == [0.25, 0.5, 0.75]
    assert values(accuracy.get_lines()[1].get_ydata()) == [0.6]


def test_a_run_without_a_step_has_no_curves() -> None:
    with pytest.raises(UserError, match="the log has no step yet"):
        curves([{"kind": "start", "strategy": "greedy"}])


def test_filters_of_the_first_stack_are_shown_as_images_of_their_fields(network: StackNetwork) -> None:
    stack = network.stacks[0]
    layer = stack.geometry.filters
    with torch.no_grad():
        stack.filters.normal_(generator=torch.Generator().manual_seed(3))
    every = filters(stack, count=10**6, name="stack 1")
    assert every.get_suptitle().replace("\n", " ") == (
        "All 432 filters of stack 1; red, green and blue are its three channels, mid-grey is 0"
    )
    assert len(every.axes) == layer.grid[0] * layer.grid[1] * layer.neurons
    shown = np.asarray(every.axes[layer.neurons + 1].get_images()[0].get_array())
    second_block = stack.filters[0, 1, :, :, 1].detach().numpy()
    one = second_block.reshape(layer.y.size, layer.x.size, 3).transpose(2, 0, 1)
    assert np.array_equal(shown, signed(one))


def test_as_many_filters_are_shown_as_were_asked_for_and_always_the_same(network: StackNetwork) -> None:
    above = network.stacks[1]  # more channels than colours
    first, again = (filters(above, count=5) for _ in range(2))
    assert len(first.axes) == 5
    title = first.get_suptitle().replace("\n", " ")
    assert title.startswith("5 of 72 filters of the stack, from random positions of the map; ")
    for one, other in zip(first.axes, again.axes, strict=True):
        images = [np.asarray(axes.get_images()[0].get_array()) for axes in (one, other)]
        assert images[0].shape == (8, 8, 3) and np.array_equal(images[0], images[1])
        assert not one.axison
    with pytest.raises(UserError, match="count must be at least 1, got 0"):
        filters(above, count=0)


def test_filters_that_see_one_pixel_are_rows_of_their_weights() -> None:
    recipe = parse(VECTORS)
    stack = SparseAutoencoderStack(recipe.stack_geometries()[0], seed=1)
    drawn = filters(stack, name="stack 1")
    assert drawn.get_suptitle().replace("\n", " ") == (
        "All 6 filters of stack 1; each row is a filter; red is positive, blue negative, white 0"
    )
    shown = np.asarray(drawn.axes[0].get_images()[0].get_array())
    assert np.array_equal(shown, stack.filters[0, 0, 0, :, :].detach().numpy().reshape(4, 6).T)


def test_figures_render_and_leave_pyplot_and_its_backend_alone(run: RunDirectory, tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
import matplotlib
from cotswold.analysis import curves
from cotswold.run import RunDirectory
known = sorted(set(matplotlib.rcParams) - {"backend"})  # asking for the backend chooses one
before = [matplotlib.rcParams[name] for name in known]
curves(RunDirectory.open(Path(sys.argv[1]))).savefig(sys.argv[2])
assert [matplotlib.rcParams[name] for name in known] == before
assert "matplotlib.pyplot" not in sys.modules
"""
    out = tmp_path / "curves.png"
    subprocess.run([sys.executable, "-c", script, str(run.path), str(out)], check=True)
    assert out.read_bytes().startswith(b"\x89PNG")


def test_events_as_they_are_read_draw_what_the_run_draws(run: RunDirectory) -> None:
    whole, read = curves(run), curves(read_events(run.events))
    assert [axes.get_title() for axes in whole.axes] == [axes.get_title() for axes in read.axes]
