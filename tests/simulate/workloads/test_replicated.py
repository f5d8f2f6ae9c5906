"""Data-parallel replicas: bytes are those of a run, parts of the batch are computed at once."""

from __future__ import annotations

import pytest
from tests.support.simulate.small_cases import cluster
from tests.support.training.small_recipes import supervised

from cotswold import predict_updates, recipe
from cotswold.errors import UserError
from cotswold.geometry import Grid, MapShape, Window
from cotswold.simulate import predict
from cotswold.simulate.workloads.layers import LayerGeometry, LayerWork
from cotswold.simulate.workloads.replicated import ReplicatedWork


def network(images: int) -> LayerWork:
    below = MapShape(3, 8, 8)
    filters = LayerGeometry("convolution", below, Window(3, 1), Window(3, 1), 4)
    return LayerWork((filters, LayerGeometry.full(filters.output, 6)), images)


@pytest.mark.parametrize("replicas", [2, 3])
def test_replicas_of_one_process_send_each_gradient_in_a_ring(replicas: int) -> None:
    work = ReplicatedWork(network(12), replicas)
    found, alone = (
        predict(cluster(replicas), work, Grid(1, 1), replicas),
        predict(cluster(replicas), network(12 // replicas), Grid(1, 1)),
    )
    assert found.ranks == replicas
    assert found.wire_bytes == 2 * (replicas - 1) * 4 * work.parameters
    assert found.compute_seconds == pytest.approx(alone.compute_seconds)
    assert found.seconds > alone.seconds
    assert found.flops == network(12).update_flops


def test_replicas_of_a_grid_send_what_each_grid_sends_and_the_sums() -> None:
    work, grid = ReplicatedWork(network(12), 3), Grid(1, 2)
    one = predict(cluster(6), network(4), grid)
    parts = sum(part.weights for row in work.work.parts(grid) for part in row)
    assert predict(cluster(6), work, grid, 3).wire_bytes == 3 * one.wire_bytes + 2 * 2 * 4 * parts


def test_the_command_divides_the_ranks_by_the_replicas(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("recipe")
    (folder / "x.toml").write_text(supervised(folder))
    wanted = recipe.load(folder / "x.toml", ["mesh.replicas=2"])
    found = predict_updates(cluster(), wanted, ranks=4).updates[0][1]
    assert found.ranks == 4
    assert Grid.parse(found.grid).size == 2
    with pytest.raises(UserError, match="2 replicas cannot divide 3 ranks"):
        predict_updates(cluster(), wanted, ranks=3)
