import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cotswold import ops
from cotswold.data import open_source
from cotswold.errors import SourceError, UserError
from cotswold.nn import SparseAutoencoderStack
from cotswold.recipe import parse
from lib.import_time import import_times
from lib.passes import evaluation_passes
from lib.preparation import preparation_rates
from lib.training.breakdown import LOWER, STEPS, VALIDATION, clocked
from lib.training.loop import loop_share

RECIPE = """
name = "tiny"
data = { source = "SOURCE", size = 12, validation = 0.2 }
training = { strategy = "greedy", batch_size = 4, epochs = 2.0 }
[[network.stacks]]
kernel_size = 4
stride = 2
block = 2
channels = 2
pool = 1
norm = 3
pool_padding = "same"
[[network.stacks]]
kernel_size = 5
block = 1
channels = 4
pool = 1
norm = 1
"""


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Make twenty small images, and one file that is not an image."""
    folder = tmp_path / "images"
    folder.mkdir()
    drawn = np.random.default_rng(0)
    for number in range(20):
        Image.fromarray(drawn.integers(0, 255, (20, 24, 3), dtype=np.uint8)).save(folder / f"{number:02}.png")
    return folder


@pytest.fixture
def recipe(tmp_path: Path, images: Path) -> Path:
    file = tmp_path / "tiny.toml"
    file.write_text(RECIPE.replace("SOURCE", str(images)))
    return file


def test_the_parts_of_a_run_sum_to_its_whole(tmp_path: Path, recipe: Path) -> None:
    kinds: list[object] = []
    found: Any = loop_share(str(recipe), [], tmp_path / "stores", lambda event: kinds.append(event["kind"]))
    parts = found["parts_seconds"]
    assert sum(parts.values()) == pytest.approx(found["whole_seconds"], rel=1e-3)
    assert all(seconds >= 0 for seconds in parts.values())
    assert found["operations_seconds"] == pytest.approx(parts[STEPS] + parts[LOWER], rel=1e-3)
    assert found["added_percent"] > found["added_without_validation_percent"] > 0
    assert [row["steps"] for row in found["stacks"]] == [8, 8]
    assert found["steps"] == 16
    assert "end" in kinds


@pytest.mark.soak
def test_those_who_watch_do_not_slow_the_loop(tmp_path: Path, recipe: Path) -> None:
    slept: list[float] = []

    def watch(event: object) -> None:
        slept.append(0.2)
        time.sleep(slept[-1])

    found: Any = loop_share(str(recipe), [], tmp_path / "stores", watch)
    assert found["whole_seconds"] < sum(slept)
    assert all(seconds >= 0 for seconds in found["parts_seconds"].values())


def test_only_the_outermost_call_in_the_loop_counts_and_all_is_put_back() -> None:
    before = ops.stack_step, SparseAutoencoderStack.forward
    with clocked() as seconds:
        inner = seconds.timed(LOWER, lambda: None)
        outer = seconds.timed(VALIDATION, inner)

        def run(loop: object) -> bool:
            outer()
            inner()
            return True

        inner()
        loop: Any = SimpleNamespace(position=SimpleNamespace(total=2))
        assert seconds.looped(run)(loop)
        inner()
        assert ops.stack_step is not before[0]
    assert {kind: len(calls) for kind, calls in seconds.calls.items()} == {VALIDATION: 1, LOWER: 1}
    assert (ops.stack_step, SparseAutoencoderStack.forward) == before


def test_a_recipe_without_stacks_has_no_loop_to_measure(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="trains no stacks"):
        loop_share("cifar10", [], tmp_path, lambda event: None)


def test_each_pass_is_measured_and_compared_with_forward_alone(images: Path) -> None:
    found: Any = evaluation_passes(parse(RECIPE.replace("SOURCE", str(images))), "output", 40, rounds=2)
    assert found["images"] == 40
    assert set(found["of_forward"]) == {"first pass", "second pass"}
    assert all(len(taken) == 2 for taken in found["seconds"].values())
    alone, first = (found["seconds"][name] for name in ("forward alone", "first pass"))
    shares = [a / b for a, b in zip(alone, first, strict=True)]
    assert found["of_forward"]["first pass"]["least"] == pytest.approx(min(shares), rel=1e-3)
    rate = found["samples_per_second"]["forward alone"]["greatest"]
    assert rate == pytest.approx(40 / min(found["seconds"]["forward alone"]), rel=1e-3)


def test_prepare_is_compared_with_pillow_on_the_same_images(images: Path) -> None:
    (images / "none.png").write_bytes(b"no image")
    found: Any = preparation_rates(open_source(str(images)), (8, 8), jobs=1, limit=None, rounds=2)
    assert (found["images"], found["broken"]) == (21, 1)
    seconds = found["seconds"]
    assert found["of_pillow"]["least"] <= seconds["Pillow alone"][0] / seconds["prepare"][0] * 1.001


def test_pillow_alone_reading_nothing_is_no_rate(images: Path) -> None:
    for file in images.iterdir():
        file.write_bytes(b"no image")
    with pytest.raises(SourceError):
        preparation_rates(open_source(str(images)), (8, 8), jobs=1, limit=None, rounds=1)


def test_importing_the_library_does_not_import_torch() -> None:
    found: Any = import_times(rounds=1)
    assert found["imports_torch"] is False
    assert set(found["seconds"]) == {"python alone", "import cotswold", "cotswold --help"}
