"""`cotswold features`.

Knows: the words of the command. Does not know: layers, file formats.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor


def features(
    run: Path,
    source: str,
    out: Path,
    *,
    layer: str | None = None,
    labels: Literal["none", "folders", "file"] = "none",
    stores: Path | None = None,
    threads: int | None = None,
) -> None:
    """Write the responses of a layer to every picture of a source.

    `.npz` holds features, names and labels; `.npy` can be larger than memory, with a .csv of names beside.

    Examples:

      cotswold features runs/demo photographs/ features.npz
      cotswold features runs/demo photographs.zip features.npy --layer 2.pooled

    Parameters
    ----------
    run
        The directory of a run of stacks.
    source
        A folder, zip or array file of pictures; they are prepared as the run's own were.
    out
        The file to write, ending in .npz or .npy; it must not exist.
    layer
        Which map: a stack from 1 upwards, and filters, pooled or output; the last stack's output by default.
    labels
        folders: the parent folder of a picture is its label; file: labels that npz, idx and CIFAR-10 carry.
    stores
        Where prepared pictures are kept; only runs of before checkpoints knew their preparation need it.
    threads
        Threads of computation; the run's own number, or all cores that this process is granted, by default.
    """
    import sys

    from cotswold import analysis, training
    from cotswold.cli.progress import counting, say
    from cotswold.cli.threads import use_threads
    from cotswold.data import open_samples, stream
    from cotswold.recipe import load
    from cotswold.run import RunDirectory

    directory = RunDirectory.open(run)
    recipe = load(directory.recipe)
    use_threads(threads, recipe)
    trained = training.trained_stacks(directory, stores)
    network = trained.network
    chosen = analysis.Layer.named(layer) if layer else analysis.top_layers(network, "output")[-1]
    respond = analysis.StackLayers(network, [chosen])
    transform = trained.prepared.transform
    found = open_samples(source, transform.preparation.kind, labels=labels)
    pictures = stream(found, transform, recipe.training.batch_size)

    def answer(maps: Tensor) -> Tensor:
        return next(responses for _, responses in respond(maps.to(recipe.training.device)))

    named = (
        (maps, [found.name(int(i)) for i in indices], [found.label(int(i)) for i in indices])
        for maps, indices in pictures
    )
    with counting("features", "pictures") as tally:
        shape = analysis.write_features(answer, named, out, progress=lambda done: tally(done, len(found)))
    for reason in pictures.broken:
        say(f"left out: {reason}")
    print(f"{out}: {' x '.join(map(str, shape))} (picture x channel x y x x), {chosen}", file=sys.stdout)
