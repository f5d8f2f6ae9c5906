"""The autoencoder's stack, compared with dense matrices, and networks of stacks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cotswold import ops
from cotswold.errors import GeometryError
from cotswold.geometry import BlockLocal, MapShape, Smoothing, StackGeometry, Window
from cotswold.nn import SparseAutoencoderStack, StackNetwork

GEOMETRY = StackGeometry(
    BlockLocal(MapShape(2, 7, 8), Window(3, 2, 1, 1), Window(4, 2), rows=2, columns=1, depth=3),
    Smoothing(3),
    Smoothing(3, keep=True),
)


def stack(
    geometry: StackGeometry = GEOMETRY, seed: int = 0, sparsity: float = 0.1, epsilon: float = 1e-6
) -> SparseAutoencoderStack:
    built = SparseAutoencoderStack(geometry, sparsity, epsilon, seed, dtype=torch.float64)
    with torch.no_grad():
        torch.manual_seed(2)
        built.filters.mul_(1 + torch.rand_like(built.filters))
        built.alpha.fill_(0.7)
        built.gain.fill_(1.5)
    return built


def dense(filters: Tensor, layer: BlockLocal) -> Tensor:
    """Return the matrix of unit-norm filters, (neuron of the output map, value of the input map)."""
    shape, out = layer.input, layer.output
    rows = []
    for depth in range(out.channels):
        for y in range(out.height):
            for x in range(out.width):
                neuron = ((y % layer.rows) * layer.columns + x % layer.columns) * layer.depth + depth
                taps = filters[y // layer.rows, x // layer.columns, :, :, neuron]
                taps = (taps / taps.norm()).view(layer.y.size, layer.x.size, shape.channels)
                top = y // layer.rows * layer.y.stride
                left = x // layer.columns * layer.x.stride
                wide = filters.new_zeros(
                    shape.channels,
                    shape.height + layer.y.pad_before + layer.y.pad_after,
                    shape.width + layer.x.pad_before + layer.x.pad_after,
                )
                window = torch.nn.functional.pad(
                    taps.permute(2, 0, 1),
                    (left, wide.shape[2] - left - layer.x.size, top, wide.shape[1] - top - layer.y.size),
                )
                inside = window[
                    :,
                    layer.y.pad_before : layer.y.pad_before + shape.height,
                    layer.x.pad_before : layer.x.pad_before + shape.width,
                ]
                rows.append(inside.flatten())
    return torch.stack(rows)


def dense_objective(autoencoder: SparseAutoencoderStack, x: Tensor) -> Tensor:
    layer = autoencoder.geometry.filters
    W, inputs = dense(autoencoder.filters, layer), (x * autoencoder.gain).flatten(1)
    responses = autoencoder.alpha * inputs @ W.T
    error = (responses @ W - inputs).square().sum()
    maps = responses.view(-1, layer.output.channels, layer.output.height, layer.output.width)
    sums = 9 * torch.nn.functional.avg_pool2d(maps.square(), 3, 1)
    return (error + autoencoder.sparsity * (sums + autoencoder.epsilon).sqrt().sum()) / x.shape[0]


def random_images(images: int = 4, geometry: StackGeometry = GEOMETRY) -> Tensor:
    shape = geometry.input
    torch.manual_seed(7)
    return torch.randn(images, shape.channels, shape.height, shape.width, dtype=torch.float64)


def test_the_objective_and_its_gradients_are_those_of_dense_matrices() -> None:
    autoencoder, x = stack(sparsity=0.3, epsilon=1e-4), random_images().requires_grad_()
    leaves = (autoencoder.filters, autoencoder.alpha, x)
    mine, expected = autoencoder.objective(x), dense_objective(autoencoder, x)
    torch.testing.assert_close(mine, expected)
    torch.testing.assert_close(torch.autograd.grad(mine, leaves), torch.autograd.grad(expected, leaves))


def test_the_objective_is_the_sum_of_its_two_terms() -> None:
    autoencoder, x = stack(sparsity=0.3), random_images()
    whole, error, penalty = autoencoder.objective_parts(x)
    torch.testing.assert_close(whole, error + penalty)
    torch.testing.assert_close(error, (autoencoder.reconstruct(x) - x).square().sum() * 1.5**2 / 4)
    torch.testing.assert_close(penalty, 0.3 * autoencoder.pooled(x).sum() / 4)


def test_the_objective_does_not_feel_the_length_of_the_filters() -> None:
    autoencoder, x = stack(), random_images()
    (gradient,) = torch.autograd.grad(autoencoder.objective(x), autoencoder.filters)
    along = (gradient * autoencoder.filters).sum((2, 3))
    torch.testing.assert_close(along, torch.zeros_like(along))
    before = autoencoder.objective(x)
    with torch.no_grad():
        autoencoder.filters.mul_(3)
    torch.testing.assert_close(autoencoder.objective(x), before)


def test_images_of_another_dtype_are_refused_with_the_remedy() -> None:
    stack = SparseAutoencoderStack(GEOMETRY)
    shape = stack.geometry.input
    x = torch.zeros(2, shape.channels, shape.height, shape.width, dtype=torch.float64)
    for function in (stack, stack.objective, stack.calibrate):
        with pytest.raises(
            GeometryError, match=r"SparseAutoencoderStack has weights of torch\.float32, but got"
        ):
            function(x)


def test_the_objective_of_one_image_is_that_of_a_batch_of_one() -> None:
    autoencoder, x = stack(), random_images()
    torch.testing.assert_close(autoencoder.objective(x[2]), autoencoder.objective(x[2:3]))


def test_each_layer_has_the_shape_that_the_geometry_says() -> None:
    autoencoder, x = stack(), random_images()
    for answer, shape in (
        (autoencoder.responses(x), GEOMETRY.responses),
        (autoencoder.pooled(x), GEOMETRY.pooled),
        (autoencoder(x), GEOMETRY.output),
        (autoencoder.reconstruct(x), GEOMETRY.input),
    ):
        assert tuple(answer.shape) == (4, shape.channels, shape.height, shape.width)


def test_a_normalisation_window_of_one_leaves_the_pooled_map_as_it_is() -> None:
    autoencoder, x = stack(replace(GEOMETRY, norm=Smoothing(1))), random_images()
    assert torch.equal(autoencoder(x), autoencoder.pooled(x))


def test_a_reconstruction_is_in_the_units_of_the_image() -> None:
    autoencoder, x = stack(), random_images()
    W = dense(autoencoder.filters, GEOMETRY.filters)
    expected = (autoencoder.alpha * x.flatten(1) @ W.T @ W).view(x.shape)
    torch.testing.assert_close(autoencoder.reconstruct(x), expected)


def test_evaluation_answers_with_recorded_norms_as_training_does() -> None:
    autoencoder, x = stack(), random_images()
    expected = autoencoder(x)
    with torch.no_grad():
        torch.testing.assert_close(autoencoder.eval()(x), expected)
        torch.testing.assert_close(autoencoder.norms, autoencoder.filters.norm(dim=(2, 3)))
        autoencoder.norms.mul_(2)
        torch.testing.assert_close(autoencoder.responses(x), stack().responses(x) / 2)


def test_filters_that_take_a_gradient_are_normalised_anew_even_in_evaluation() -> None:
    autoencoder, x = stack().eval(), random_images()
    autoencoder.norms.fill_(99)
    torch.testing.assert_close(autoencoder(x), stack()(x))


def test_any_optimiser_lowers_the_objective() -> None:
    autoencoder, x = stack(), random_images(16)
    autoencoder.calibrate(x)
    optimiser = torch.optim.Adam(autoencoder.parameters(), lr=0.02)
    first = autoencoder.objective(x).item()
    for _ in range(30):
        optimiser.zero_grad()
        loss = autoencoder.objective(x)
        loss.backward()  # type: ignore[no-untyped-call]  # torch has it untyped
        optimiser.step()
    assert autoencoder.objective(x).item() < 0.8 * first


def test_first_filters_have_norm_one_and_depend_on_seed_and_index_alone() -> None:
    one = SparseAutoencoderStack(GEOMETRY, seed=3, index=1)
    norms = one.filters.norm(dim=(2, 3))
    torch.testing.assert_close(norms, torch.ones_like(norms))
    torch.manual_seed(99)
    assert torch.equal(one.filters, SparseAutoencoderStack(GEOMETRY, seed=3, index=1).filters)
    assert not torch.equal(one.filters, SparseAutoencoderStack(GEOMETRY, seed=4, index=1).filters)
    assert not torch.equal(one.filters, SparseAutoencoderStack(GEOMETRY, seed=3, index=2).filters)


def test_a_stack_built_on_the_meta_device_is_filled_after_it_has_got_memory() -> None:
    with torch.device("meta"):
        autoencoder = SparseAutoencoderStack(GEOMETRY, seed=3)
    autoencoder.eval().to_empty(device="cpu")
    autoencoder.reset_parameters()
    for key, value in SparseAutoencoderStack(GEOMETRY, seed=3).state_dict().items():
        assert torch.equal(autoencoder.state_dict()[key], value), key


def test_calibration_scales_inputs_to_one_and_finds_the_best_alpha() -> None:
    autoencoder, x = stack(), 40 * random_images()
    autoencoder.calibrate(x)
    torch.testing.assert_close((x * autoencoder.gain).square().mean(), torch.ones((), dtype=torch.float64))
    best, alpha = autoencoder.objective(x).item(), autoencoder.alpha.clone()
    for factor in (0.9, 0.99, 1.01, 1.1):
        with torch.no_grad():
            autoencoder.alpha.copy_(alpha * factor)
        assert autoencoder.objective(x).item() > best - 1e-6


def test_the_state_shares_its_memory_with_the_module() -> None:
    autoencoder = stack()
    momentum = torch.zeros_like(autoencoder.filters)
    state = autoencoder.state(momentum)
    for mine, theirs in (
        (autoencoder.filters, state.filters),
        (autoencoder.norms, state.norms),
        (autoencoder.alpha, state.alpha),
        (autoencoder.gain, state.gain),
        (momentum, state.momentum),
    ):
        assert mine.data_ptr() == theirs.data_ptr()
        assert not theirs.requires_grad


def test_a_step_of_training_sees_the_module_s_objective_and_changes_the_module() -> None:
    autoencoder, x = stack(sparsity=0.3).eval(), random_images()
    expected = autoencoder.objective_parts(x)
    before = autoencoder.filters.clone()
    settings, momentum = autoencoder.objective_settings, torch.zeros_like(autoencoder.filters)
    report = ops.stack_step(autoencoder.state(momentum), x, GEOMETRY, settings, ops.StepRule(rate=0.1))
    for seen, part in zip((report.loss, report.reconstruction, report.sparsity), expected, strict=True):
        torch.testing.assert_close(seen, part)
    assert not torch.equal(autoencoder.filters, before)
    norms = autoencoder.filters.norm(dim=(2, 3))
    torch.testing.assert_close(norms, torch.ones_like(norms))


def test_filters_in_half_precision_keep_their_few_companions_in_float32() -> None:
    autoencoder = SparseAutoencoderStack(GEOMETRY, dtype=torch.bfloat16)
    autoencoder.calibrate(random_images().bfloat16())
    assert {name: value.dtype for name, value in autoencoder.state_dict().items()} == {
        "filters": torch.bfloat16,
        "alpha": torch.float32,
        "norms": torch.float32,
        "gain": torch.float32,
    }
    assert autoencoder(random_images().bfloat16()).dtype == torch.bfloat16


def test_a_filter_of_zeros_gives_zeros() -> None:
    autoencoder, x = stack(), random_images()
    with torch.no_grad():
        autoencoder.filters[:, :, :, :, 0] = 0
    assert not autoencoder.responses(x)[:, 0, ::2].any()
    assert autoencoder.objective(x).isfinite()
    with torch.no_grad():
        assert autoencoder.eval().objective(x).isfinite()


def test_the_repr_names_maps_fields_blocks_and_constants() -> None:
    assert repr(SparseAutoencoderStack(GEOMETRY, seed=3)) == (
        "SparseAutoencoderStack(2 x 7 x 8 -> 3 x 6 x 1, kernel_size=(3, 4), stride=(2, 2), block=(2, 1, 3), "
        "grid=(4, 3), pool=3, norm=3, sparsity=0.1, epsilon=1e-06, seed=3, index=0)"
    )


ABOVE = StackGeometry(
    BlockLocal(GEOMETRY.output, Window(2), Window(1), rows=1, columns=1, depth=2), Smoothing(1), Smoothing(1)
)


def test_a_network_hands_each_output_to_the_next_stack() -> None:
    first, second, x = stack(), stack(ABOVE, seed=1), random_images()
    network = StackNetwork([first, second])
    torch.testing.assert_close(network(x), second(first(x)))
    torch.testing.assert_close(network.forward_to(x, 0, "filters"), first.responses(x))
    torch.testing.assert_close(network.forward_to(x, 0, "output"), first(x))
    torch.testing.assert_close(network.forward_to(x, 1, "pooled"), second.pooled(first(x)))
    torch.testing.assert_close(network.forward_to(x, -1, "filters"), second.responses(first(x)))


def test_the_parameters_of_a_network_are_named_by_stack() -> None:
    network = StackNetwork([stack(), stack(ABOVE)])
    assert [name for name, _ in network.named_parameters()] == [
        "stacks.0.filters",
        "stacks.0.alpha",
        "stacks.1.filters",
        "stacks.1.alpha",
    ]


def test_stacks_that_do_not_fit_on_each_other_are_refused() -> None:
    with pytest.raises(GeometryError, match="stack 1 reads maps of 2 x 7 x 8, but stack 0 writes 3 x 6 x 1"):
        StackNetwork([stack(), stack()])
    with pytest.raises(GeometryError, match="at least one stack"):
        StackNetwork([])


def test_a_stack_or_layer_that_is_not_there_is_refused() -> None:
    network, x = StackNetwork([stack()]), random_images()
    for index in (1, -2):
        with pytest.raises(GeometryError, match=f"stack_index {index} is out of range for 1 stacks"):
            network.forward_to(x, index, "output")
    with pytest.raises(GeometryError, match="filters, pooled or output, got 'norm'"):
        network.forward_to(x, 0, "norm")  # type: ignore[arg-type]  # the mistake itself
