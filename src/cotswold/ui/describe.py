"""Events of a run as sentences.

Knows: the fields of events. Does not know: displays, the processes.
"""

from __future__ import annotations

from collections.abc import Mapping

from cotswold.run.first_checkpoint import NOTHING_SAVED
from cotswold.ui.format import as_number, bytes_in_words, clock, flop_rate, kinds_of, time_left
from cotswold.words import counted as counted_of


def describe(event: Mapping[str, object], left: float | None = None) -> str | None:
    """Return one line for an event, or None; ``left`` is the remaining seconds after a step."""
    match event["kind"]:
        case "start":
            grid = "" if event.get("grid", "1x1") == "1x1" else f", {event['grid']} ranks"
            samples = event.get("samples")  # missing for a data set without a length
            count = "" if samples is None else f"{samples} samples, "
            return f"{event['name']}: {event['strategy']}, {count}{event['parameters']:,} weights{grid}"
        case "stack":
            maps = f", {event['input']} -> {event['output']}" if "input" in event else ""
            again = ", trained further" if "prolongation" in event else ""
            return f"{phase_name(event['stack'])}: {event['parameters']:,} weights{maps}{again}"
        case "step":
            of = f"/{event['of']}" if "of" in event else ""  # the end of a phase may be open
            place = f"{phase_name(event['stack'])} {event['at']}{of}"
            return ", ".join([f"{place} {figures(event)}", *([] if left is None else [time_left(left)])])
        case "stack_end" if "why" in event:
            of = "samples" if "counted" in event else "iterations"
            return f"{phase_name(event['stack'])} ended after {event['step']} {of}: {event['why']}"
        case "stack_end" if "pushed" in event:
            return (
                f"{phase_name(event['stack'])} ended; {_describe_pushes(event)}{_describe_uncounted(event)}"
            )
        case "metrics":
            return f"metrics for Prometheus: {event['url']}"
        case "prolonged":
            # replicas have no phases
            how = ", by phases with their own schedule" if "prolongation" in event else ""
            return f"extended to {_epochs(event['epochs'])} epochs{how}"
        case "validation":
            accuracy = f" accuracy {as_number(event['accuracy']):.2%}" if "accuracy" in event else ""
            return f"{phase_name(event['stack'])} validation: loss {as_number(event['loss']):.5g}{accuracy}"
        case "resumed":
            skipped = event.get("skipped")
            named = "; ".join(map(str, skipped)) if isinstance(skipped, list) else ""
            note = f" (skipped: {named})" if named else ""
            grid = "" if event.get("grid", "1x1") == "1x1" else f" on {event['grid']} ranks"
            kept = event.get("remembered")
            words = ", ".join(map(str, kept)) if isinstance(kept, list) else ""
            before = f" with {words}, as saved in the run" if words else ""
            is_step = event.get("counts", "steps") == "steps"
            place = f"step {event['step']}" if is_step else f"{event['step']:,} samples"
            return f"resumed after {place}{grid}{before}{note}"
        case "nothing_left":
            return f"the run is already complete: {event['why']}"
        case "warning":
            return f"warning: {event['warning']}"
        case "begun_anew":
            return NOTHING_SAVED
        case "observer_lost":
            return f"{event['observer']} failed and is disabled ({event['error']}); training continues"
        case "end":
            rate = as_number(event["flops_per_second"])
            why = f" ({event['why']})" if event["status"] == "limited" and "why" in event else ""
            seconds = clock(as_number(event["training_seconds"]))
            return f"{event['status']}{why}: {event['samples']:,} samples in {seconds}, {flop_rate(rate)}"
        case _:
            return None


def _epochs(totals: object) -> str:
    """Return the epochs of every stack, or one number if they are equal."""
    numbers = totals if isinstance(totals, list | tuple) else [totals]
    return ", ".join(f"{as_number(each):g}" for each in (numbers if len(set(numbers)) > 1 else numbers[:1]))


def figures(event: Mapping[str, object]) -> str:
    """Return loss and rates of a step event."""
    slopes = int(as_number(event.get("slopes")))
    part = f" ({slopes} of them slopes on a fraction of the samples)" if slopes else ""
    asked = int(as_number(event.get("evaluations"))) + slopes  # as evaluations are numbered in progress
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
    waiting = as_number(event.get("waiting_bytes"))
    queue = f" queue {bytes_in_words(waiting)}" if waiting else ""
    why = f" ({event['refused_why']})" if event.get("refused_why") else ""
    counts = {word: as_number(event.get(word)) for word in ("refused", "torn")}
    missing = [f"{count:,.0f} samples {word}" for word, count in counts.items() if count]
    queue += f", {', '.join(missing)}{why}," if missing else ""
    return (
        f"{accuracy} epoch {int(as_number(event.get('epoch'))) + 1} "
        f"{counted_of(int(as_number(event['replicas'])), 'replica')} "
        f"staleness {as_number(event.get('staleness')):.1f}{queue}"
    )


def _describe_pushes(event: Mapping[str, object]) -> str:
    """Return the bytes that replicas pushed, by layer."""
    layers = event["pushed"] if isinstance(event["pushed"], Mapping) else {}
    parts = []
    for layer, kinds in layers.items():
        told = [f"{bytes_in_words(as_number(count))} as {kinds_of(kind)}" for kind, count in kinds.items()]
        parts.append(f"{layer} {' and '.join(told)}")
    return f"replicas pushed {bytes_in_words(as_number(event.get('pushed_bytes')))}: {', '.join(parts)}"


def _describe_uncounted(event: Mapping[str, object]) -> str:
    """Return the samples that were not counted; empty if all were."""
    found = [
        f"{as_number(event[name]):,.0f} {word}"
        for name, word in (("refused", "refused"), ("torn", "torn"), ("left_out", "left out"))
        if event.get(name)
    ]
    counted = as_number(event.get("counted"))
    return f"; {counted:,.0f} samples counted, {', '.join(found)}" if found else ""


def phase_name(stack: object) -> str:
    """Return the name of a phase; stacks are numbered from 1."""
    return (
        f"stack {stack + 1}" if isinstance(stack, int) else {"all": "all stacks"}.get(str(stack), str(stack))
    )
