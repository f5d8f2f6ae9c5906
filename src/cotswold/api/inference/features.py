"""Responses of a layer to other samples, as arrays or in a file.

Knows: the combination of a run, a source and a layer. Does not know: layers, file formats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cotswold.api.inference.inputs import InferenceInputs, open_inputs
from cotswold.api.run import Run
from cotswold.api.threads import compute_threads
from cotswold.phrases import counted
from cotswold.ui.display import display_for

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from cotswold.analysis import Layer, StackLayers

Labels = Literal["none", "folders", "file"]


@dataclass(frozen=True)
class Features:
    """Responses of a layer to samples, one row per sample.

    Args:
        features: float32 (sample, channel, y, x).
        names: Names of the samples, Python strings (sample,).
        labels: int64 (sample,), -1 without a label.
        layer: Name of the layer.
        skipped: Unreadable samples, each with the reason.
    """

    features: NDArray[np.float32]
    """(sample, channel, y, x)."""
    names: NDArray[np.object_]
    """Python strings (sample,)."""
    labels: NDArray[np.int64]
    """(sample,), -1 without a label."""
    layer: str
    skipped: tuple[str, ...]
    """Unreadable samples, each with the reason."""

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        classes = len({*self.labels.tolist()} - {-1})
        left_out = f"; {len(self.skipped)} left out" if self.skipped else ""
        labels = f"labels of {counted(classes, 'class')}" if classes else "no labels"
        return (
            f"<Features of {counted(len(self), 'sample')}: layer {self.layer}, {self.features.dtype} "
            f"{self.features.shape}; {labels}{left_out}>"
        )


@dataclass(frozen=True)
class ResponseFile:
    """A file of responses.

    Args:
        path: The file.
        shape: (sample, channel, y, x).
        layer: Name of the layer.
        skipped: Unreadable samples, each with the reason.
    """

    path: Path
    shape: tuple[int, ...]
    """(sample, channel, y, x)."""
    layer: str
    skipped: tuple[str, ...]


def features(
    run: Run | str | Path,
    source: object,
    *,
    layer: str | int | None = None,
    labels: Labels = "none",
    threads: int | None = None,
    progress: bool | None = None,
) -> Features:
    """Compute the responses of a layer of a run of stacks to every sample of a source.

    The samples are prepared like the run's own. All responses are kept in memory; use `write_features` for
    more.

    Args:
        run: The run, or its directory.
        source: Images, vectors or frames: a folder, a zip, an array file, or one image. For a run on a table,
            a CSV or Parquet file, a frame of pandas or polars, or an array.
        layer: A stack (from 1) and one of its maps, filters, pooled or output, such as ``"2.pooled"``. A
            number alone means that stack's output. [output of the last stack]
        labels: ``"folders"`` labels a sample by its parent folder, ``"file"`` reads the labels of npz, idx
            and CIFAR-10 files, ``"none"`` gives -1.
        threads: Number of threads. [as in the recipe, else all cores]
        progress: Show progress. [if on a terminal or in a notebook]

    Raises:
        RunError: if the run cannot be used.
        SourceError: if the source cannot be read.
        UserError: if the layer does not exist.
        MemoryLimitError: if the memory does not suffice.
    """
    import numpy as np

    with _open_work(run, source, layer, labels, threads, progress) as work:
        rows: list[NDArray[np.float32]] = []
        names: list[str] = []
        numbers: list[int] = []
        with work.display.count("features", work.source.kind) as advance:
            for maps, called, given in work.batches():
                rows.append(np.ascontiguousarray(work.responses(maps).float().cpu().numpy()))
                names += called
                numbers += given
                advance(len(names), len(work.source))
        found = np.concatenate(rows)
        left_out = work.skipped()
    return Features(found, np.array(names, object), np.array(numbers, np.int64), str(work.layer), left_out)


def write_features(
    run: Run | str | Path,
    source: object,
    out: str | Path,
    *,
    layer: str | int | None = None,
    labels: Labels = "none",
    threads: int | None = None,
    progress: bool | None = None,
) -> ResponseFile:
    """Write the result of `features` to a file, batch by batch.

    An `.npz` contains features, names and labels. An `.npy` can be larger than memory; a .csv with the
    names is written next to it.

    Args:
        run: The run, or its directory.
        source: Images, vectors or frames: a folder, a zip, an array file, or one image. For a run on a table,
            a CSV or Parquet file, a frame of pandas or polars, or an array.
        out: The new file, `.npz` or `.npy`.
        layer: As for `features`.
        labels: As for `features`.
        threads: Number of threads. [as in the recipe, else all cores]
        progress: Show progress. [if on a terminal or in a notebook]

    Returns:
        The path and shape of the file.

    Raises:
        UserError: if the file exists.
    """
    from cotswold import analysis

    with _open_work(run, source, layer, labels, threads, progress) as work:
        with work.display.count("features", work.source.kind) as advance:
            shape = analysis.write_features(
                work.responses,
                work.batches(),
                Path(out),
                progress=lambda done: advance(done, len(work.source)),
            )
        return ResponseFile(Path(out), shape, str(work.layer), work.skipped())


@dataclass(frozen=True, kw_only=True)
class _Work(InferenceInputs):
    """A layer and the samples to which it responds."""

    layer: Layer
    respond: StackLayers

    def responses(self, maps: Tensor) -> Tensor:
        """Return responses (image, channel, y, x) to prepared samples."""
        import torch

        with torch.no_grad():
            return self.respond.first(maps.to(self.device))

    def batches(self) -> Iterator[tuple[Tensor, Sequence[str], Sequence[int]]]:
        """Yield prepared samples, their names and labels."""
        for maps, indices in self.samples:
            numbers = indices.tolist()
            yield maps, list(map(self.source.name, numbers)), list(map(self.source.label, numbers))


@contextmanager
def _open_work(
    run: Run | str | Path,
    source: object,
    layer: str | int | None,
    labels: Labels,
    threads: int | None,
    progress: bool | None,
) -> Iterator[_Work]:
    known = Run(run)
    known.require_recipe_run("features")
    recipe = known.recipe
    with compute_threads(threads, recipe):
        from cotswold import analysis, training
        from cotswold.data import stream

        trained = training.trained_stacks(known.directory)
        if layer is None:
            chosen = analysis.top_layers(trained.network, "output")[-1]
        else:
            chosen = analysis.Layer.parse(f"{layer}.output" if isinstance(layer, int) else str(layer))
        respond = analysis.StackLayers(trained.network, [chosen])
        transform = trained.prepared.transform
        found = open_inputs(source, transform, labels)
        samples = stream(found, transform, recipe.training.batch_size)
        yield _Work(
            source=found,
            samples=samples,
            device=recipe.training.device,
            display=display_for(progress),
            layer=chosen,
            respond=respond,
        )
