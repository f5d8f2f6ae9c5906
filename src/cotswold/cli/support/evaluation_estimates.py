"""Predicted evaluations of strategy `batch` as tables and JSON.

Knows: the layout of a prediction. Does not know: how it is computed, the arguments of a command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cotswold.cli.support.json_output import print_json
from cotswold.cli.support.tables import table

if TYPE_CHECKING:
    from cotswold import PredictedEvaluations
    from cotswold.simulate import EvaluationPrediction

_PARTS = ("point", "portions", "sum", "push", "shards", "rounds")


def show(predicted: PredictedEvaluations, json_: bool) -> None:
    """Print predicted evaluations."""
    cluster, recipe, found = predicted.cluster, predicted.recipe, predicted.evaluations
    if json_:
        said = {"recipe": recipe.name, "samples": predicted.samples, "outputs": predicted.outputs}
        print_json("simulate.evaluations", {**said, "evaluations": [each.as_dict() for each in found]})
        return
    words = f"{recipe.name}, batch, {predicted.samples:,} samples, {predicted.outputs:,} outputs"
    table(f"{words}, on {cluster.name}: one evaluation", [_row(each) for each in found])
    table("milliseconds per evaluation, by part", [_parts(each) for each in found])
    if not all(each.fits for each in found):
        print("* more than the memory of a device, or of a host for its devices")


def _row(found: EvaluationPrediction) -> dict[str, object]:
    dollars, cents = found.dollars_per_thousand_evaluations, found.cents_per_mflops
    row: dict[str, object] = {
        "workers": found.workers,
        "hosts": found.hosts,
        "seconds": f"{found.seconds:,.4g}",
        "again": f"{found.repeated_seconds:,.4g}",
        "computing": f"{100 * found.computing_fraction:.1f} %",
        "samples/s": f"{found.samples_per_second:,.0f}",
        "GFLOP": f"{found.flops / 1e9:,.1f}",
        "GFLOP/s": f"{found.flops_per_second / 1e9:,.2f}",
        "of peak": f"{100 * found.efficiency:.1f} %",
        "MB on the wire": f"{found.wire_bytes / 1e6:,.1f}",
        "between hosts": f"{found.network_bytes / 1e6:,.1f}",
        "GB per worker": f"{found.worker_bytes / 1e9:,.3f}{'' if found.fits else ' *'}",
    }
    if dollars is not None:
        row["$ per 1000 evaluations"] = f"{dollars:,.3f}"
    if cents is not None:
        row["cents per MFLOP/s"] = f"{cents:,.3f}"
    return row


def _parts(found: EvaluationPrediction) -> dict[str, object]:
    seconds = {name: f"{1e3 * found.parts[name]:,.3f}" if name in found.parts else "" for name in _PARTS}
    return {"workers": found.workers, **seconds, "reduced by": found.reduction}
