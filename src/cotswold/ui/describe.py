"""Events of a run as sentences.

Knows: the fields of events. Does not know: displays, the processes.
"""

from __future__ import annotations

from collections.abc import Mapping

from cotswold.phrases import counted as counted_of
from cotswold.run.stop import NOTHING_SAVED
from cotswold.ui.format import as_number, bytes_in_words, clock, flop_rate, kinds_of, time_left


def _describe_ranks(event: Mapping[str, object]) -> str:
    """Return the grid and the replicas of a start, as text; "" for a single process."""
    grid, replicas = event.get("grid", "1x1"), event.get("replicas", 1)
    of_grid = "" if grid == "1x1" else f"{grid} ranks"
    if replicas == 1:
        return of_grid
    return f"{replicas} replicas{' of ' if of_grid else ''}{of_grid}"


def describe(event: Mapping[str, object], left: float | None = None) -> str | None:
    """Return one line for an event, or None; ``left`` is the remaining seconds after a step."""
    match event["kind"]:
        case "start":
            ranks = _describe_ranks(event)
            grid = ranks and f", {ranks}"
            samples = event.get("samples")  # missing for a data set without a length
            count = "" if samples is None else f"{samples} samples, "
            device = f", on {event['device']}" if "device" in event else ""
            return (
                f"{event['name']}: {event['strategy']}, {count}{event['parameters']:,} weights{grid}{device}"
            )
        case "phase_start":
            maps = f", {event['input']} -> {event['output']}" if "input" in event else ""
            again = ", trained further" if "extension" in event else ""
            return f"{phase_name(event['phase'])}: {event['parameters']:,} weights{maps}{again}"
        case "step":
            of = f"/{event['phase_steps']}" if "phase_steps" in event else ""  # phases may have no end
            place = f"{phase_name(event['phase'])} {event['phase_step']}{of}"
            return ", ".join([f"{place} {figures(event)}", *([] if left is None else [time_left(left)])])
        case "phase_end" if "reason" in event:
            of = "samples" if "samples_counted" in event else "iterations"
            return f"{phase_name(event['phase'])} ended after {event['step']} {of}: {event['reason']}"
        case "phase_end" if "pushed_bytes_by_layer" in event:
            return (
                f"{phase_name(event['phase'])} ended; {_describe_pushes(event)}{_describe_uncounted(event)}"
            )
        case "metrics":
            return f"metrics for Prometheus: {event['url']}"
        case "extended":
            # replicas have no phases
            how = ", by phases with their own schedule" if "extension" in event else ""
            return f"extended to {_epochs(event['epochs'])} epochs{how}"
        case "validation":
            accuracy = f" accuracy {as_number(event['accuracy']):.2%}" if "accuracy" in event else ""
            return f"{phase_name(event['phase'])} validation: loss {as_number(event['loss']):.5g}{accuracy}"
        case "resumed":
            skipped = event.get("skipped_checkpoints")
            named = "; ".join(map(str, skipped)) if isinstance(skipped, list) else ""
            note = f" (skipped: {named})" if named else ""
            ranks = _describe_ranks(event)
            grid = ranks and f" on {ranks}"
            kept = event.get("overrides")
            words = ", ".join(map(str, kept)) if isinstance(kept, list) else ""
            before = f" with {words}, as saved in the run" if words else ""
            is_step = event.get("step_unit", "steps") == "steps"
            place = f"step {event['step']}" if is_step else f"{event['step']:,} samples"
            return f"resumed after {place}{grid}{before}{note}"
        case "frozen_outputs" if event.get("kept_in"):
            size = bytes_in_words(as_number(event["bytes"]))
            where = "memory" if event["kept_in"] == "memory" else "a file on the disk"
            return f"outputs of frozen stacks are kept in {where}: {event['samples']:,} samples, {size}"
        case "already_complete":
            return f"the run is already complete: {event['reason']}"
        case "warning":
            return f"warning: {event['warning']}"
        case "restarted":
            return NOTHING_SAVED
        case "observer_lost":
            return f"{event['observer']} failed and is disabled ({event['error']}); training continues"
        case "end":
            rate = as_number(event["flops_per_second"])
            reason = f" ({event['reason']})" if event["status"] != "failed" and event.get("reason") else ""
            seconds = clock(as_number(event["training_seconds"]))
            return f"{event['status']}{reason}: {event['samples']:,} samples in {seconds}, {flop_rate(rate)}"
        case _:
            return None


def _epochs(totals: object) -> str:
    """Return the epochs of every stack, or one number if they are equal."""
    numbers = totals if isinstance(totals, list | tuple) else [totals]
    return ", ".join(f"{as_number(each):g}" for each in (numbers if len(set(numbers)) > 1 else numbers[:1]))


def figures(event: Mapping[str, object]) -> str:
    """Return loss and rates of a step event."""
    partial = int(as_number(event.get("partial_evaluations")))
    part = f" ({partial} of them slopes on a fraction of the samples)" if partial else ""
    asked = int(as_number(event.get("evaluations"))) + partial  # as evaluations are numbered in progress
    counted = f" {asked} evaluations{part}" if "evaluations" in event else ""
    workers = f" {event['workers']} workers" if as_number(event.get("workers")) > 1 else ""
    noted = "".join(f", {name}: {event[name]}" for name in ("restart", "skipped", "failure") if name in event)
    rate = flop_rate(1e9 * as_number(event["gflops"]))
    return (
        f"loss {as_number(event['loss']):.5g}{_describe_replicas(event)}{counted}{workers} "
        f"{as_number(event['samples_per_second']):.0f} samples/s {rate}{noted}"
    )


def _describe_replicas(event: Mapping[str, object]) -> str:
    """Return the part of a step event about replicas; empty without replicas."""
    if "replicas" not in event:
        return ""
    accuracy = f" accuracy {as_number(event['accuracy']):.2%}" if "accuracy" in event else ""
    queued = as_number(event.get("queued_bytes"))
    queue = f" queue {bytes_in_words(queued)}" if queued else ""
    reasons = f" ({event['refusal_reasons']})" if event.get("refusal_reasons") else ""
    counts = {word: as_number(event.get(f"samples_{word}")) for word in ("refused", "torn")}
    missing = [f"{count:,.0f} samples {word}" for word, count in counts.items() if count]
    queue += f", {', '.join(missing)}{reasons}," if missing else ""
    return (
        f"{accuracy} epoch {int(as_number(event.get('epoch'))) + 1} "
        f"{counted_of(int(as_number(event['replicas'])), 'replica')} "
        f"staleness {as_number(event.get('staleness')):.1f}{queue}"
    )


def _describe_pushes(event: Mapping[str, object]) -> str:
    """Return the bytes that replicas pushed, by layer."""
    pushed = event["pushed_bytes_by_layer"]
    layers = pushed if isinstance(pushed, Mapping) else {}
    parts = []
    for layer, kinds in layers.items():
        told = [f"{bytes_in_words(as_number(count))} as {kinds_of(kind)}" for kind, count in kinds.items()]
        parts.append(f"layer {layer}: {' and '.join(told)}")
    return f"replicas pushed {bytes_in_words(as_number(event.get('pushed_bytes')))}: {'; '.join(parts)}"


def _describe_uncounted(event: Mapping[str, object]) -> str:
    """Return the samples that were not counted; empty if all were."""
    found = [
        f"{as_number(event[f'samples_{name}']):,.0f} {name.replace('_', ' ')}"
        for name in ("refused", "torn", "left_out")
        if event.get(f"samples_{name}")
    ]
    counted = as_number(event.get("samples_counted"))
    return f"; {counted:,.0f} samples counted, {', '.join(found)}" if found else ""


def phase_name(phase: object) -> str:
    """Return the name of a phase; stacks are numbered from 1."""
    return (
        f"stack {phase + 1}" if isinstance(phase, int) else {"all": "all stacks"}.get(str(phase), str(phase))
    )
