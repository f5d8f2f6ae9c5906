from dataclasses import replace
from pathlib import Path

from tests.support.bench.small_cases import SMALLEST, small_layer, small_stack

from cotswold.bench.kernels import layers, perceptron, stacks
from cotswold.bench.kernels.plots import draw, draw_curve
from cotswold.bench.kernels.shapes import Perceptron
from cotswold.bench.measure import Document
from cotswold.bench.row import Row


def _result(rows: list[Row], threads: int = 1) -> Document:
    return {"dense_size": 32, "rows": [{"threads": threads, **row.as_dict()} for row in rows]}


def test_the_image_names_every_shape_everybody_and_the_ceiling(tmp_path: Path) -> None:
    rows = layers.measured(small_layer(), SMALLEST)
    paper = [
        replace(row, key=replace(row.key, group="paper", shape="a stack"))
        for row in stacks.measured(small_stack(), SMALLEST)
    ]
    dense = perceptron.measured(Perceptron(3, 4, 5, 6), SMALLEST)
    assert draw(_result([*paper, *rows, *dense]), tmp_path / "kernels.svg")
    drawing = (tmp_path / "kernels.svg").read_text()
    for word in ("a stack, batch 4", "little, batch 4", "3-4-5, batch 6", "Cotswold", "PyTorch"):
        assert word in drawing
    assert "fastest dense product" in drawing and "1 thread;" in drawing


def test_the_curve_has_a_line_for_every_library(tmp_path: Path) -> None:
    rows = [row for size in (8, 16) for row in perceptron.curve(size, SMALLEST)]
    assert draw_curve(_result(rows), tmp_path / "curve.svg")
    drawing = (tmp_path / "curve.svg").read_text()
    assert all(word in drawing for word in ("cotswold", "torch.mm", "NumPy", ">16<"))


def test_the_run_with_the_most_threads_is_drawn(tmp_path: Path) -> None:
    rows = layers.measured(small_layer(), SMALLEST)
    both = {
        "dense_size": 32,
        "rows": [{**row.as_dict(), "threads": count} for count in (1, 2) for row in rows],
    }
    assert draw(both, tmp_path / "kernels.svg")
    assert "2 threads;" in (tmp_path / "kernels.svg").read_text()


def test_the_same_result_gives_the_same_file(tmp_path: Path) -> None:
    found = _result(layers.measured(small_layer(), SMALLEST))
    for name in ("a.svg", "b.svg"):
        assert draw(found, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_where_nothing_of_it_was_measured_no_image_is_left(tmp_path: Path) -> None:
    empty = _result([])
    assert not draw(empty, tmp_path / "kernels.svg") and not draw_curve(empty, tmp_path / "curve.svg")
    assert list(tmp_path.iterdir()) == []
