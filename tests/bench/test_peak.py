from cotswold.bench.kernels.peak import greatest_sum, peak_of
from cotswold.geometry import BlockLocal, MapShape, Smoothing, StackGeometry, Window


def test_what_was_released_before_the_peak_does_not_count() -> None:
    assert greatest_sum([100, -100, 60, 30, -30]) == 100
    assert greatest_sum([60, 60, -60]) == 120


def test_the_peak_of_a_step_holds_filters_momentum_batch_and_maps() -> None:
    layer = BlockLocal(MapShape(3, 16, 16), Window(8, 4), Window(8, 4), 2, 2, 4)
    stack = StackGeometry(layer, Smoothing(1), Smoothing(1))
    found = peak_of(stack, 32)
    parts = ("filters_bytes", "momentum_bytes", "activations_bytes", "block_row_gradient_bytes")
    assert found["allowed_bytes"] == sum(found[part] for part in parts)  # type: ignore[misc]  # all are counts
    # the batch, what is decoded, responses and their gradient: these are alive at once
    least = 4 * (2 * layer.parameters + 32 * (2 * layer.input.size + 2 * layer.output.size))
    assert isinstance(found["peak_bytes"], int)
    assert least <= found["peak_bytes"] <= 3 * least
