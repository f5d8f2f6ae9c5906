"""The page of events: kinds from the source, meanings from here.

Knows: the meaning of each kind. Does not know: who writes an event; the build fails if the source writes
another.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from docs.generator.errors import SiteError
from docs.generator.reference.text import SOURCE, table

EVENTS = {
    "start": "The run starts.",
    "start_failed": "The run ends before its first step.",
    "restarted": "A run without a checkpoint starts again from its first step.",
    "resumed": "The run continues from a checkpoint.",
    "extended": "The run is extended by more epochs than its recipe has.",
    "already_complete": "There is nothing left to train.",
    "phase_start": "A phase of the training starts: a stack of a greedy network, or the whole training.",
    "step": "Means over the steps or the iteration since the previous event of this kind.",
    "validation": "Results on the validation samples.",
    "subset": "The subset of samples on which full-batch training works.",
    "phase_end": "A phase of the training ends.",
    "checkpoint": "A checkpoint is complete.",
    "end": "The run ends.",
    "warning": "A warning.",
    "whiteness": "How white the prepared images are.",
    "learning_rates": "Rates of all parameter groups, by the callback `LRMonitor`.",
    "gradient_norms": "Norms of gradients, by the callback `GradientNorms`.",
    "callback_failed": "A callback raised an exception.",
    "observer_lost": "A receiver of events raised an exception, and receives no more.",
    "metrics": "Address of the Prometheus metrics. Shown, not saved.",
    "replicas": "Status of replicas, servers and evaluators. Shown, not saved.",
    "portions": "Progress of the current evaluation. Shown, not saved.",
}
"""Meaning of each kind that a run writes."""

PROCESSES = {
    "cluster_joined": "A process joins; `process` is its number on `host`.",
    "cluster_left": "A process leaves.",
    "cluster_lost": "A process is lost; others take over its work.",
    "cluster_refused": "A process is refused.",
    "cluster_exited": "A process of this host exits.",
    "cluster_replication": "A server becomes the primary of buckets, or a copy changes.",
    "cluster_recovered": "All servers of a part of the parameters were lost; an earlier state is restored.",
    "cluster_samples_lost": "Samples were lost after they were assigned.",
    "cluster_restored": "A server resumes from its disk.",
    "cluster_disk": "A server's disk has a fault.",
    "cluster_waiting": "The run waits for a process.",
}
"""Meaning of each kind about processes; their state machines write them with the prefix `cluster_`."""

_METHODS = {"event", "write", "show"}
_LOG = re.compile(r"(?:^|[._])(?:self|log|recorder|context|events?)$")


def event_page() -> str:
    """Return the page; raises SiteError if the source and `EVENTS` differ."""
    fields = written()
    if missing := sorted(fields.keys() - EVENTS.keys()):
        raise SiteError(
            f"state the meaning of events {', '.join(missing)} in docs/generator/reference/events.py"
        )
    if unused := sorted(EVENTS.keys() - fields.keys()):
        raise SiteError(
            f"remove events {', '.join(unused)}, which nothing writes, from "
            f"docs/generator/reference/events.py"
        )
    if missing := sorted(set(named()) - PROCESSES.keys()):
        raise SiteError(
            f"state the meaning of events {', '.join(missing)} in docs/generator/reference/events.py"
        )
    rows = [
        [f"`{kind}`", meaning, ", ".join(f"`{name}`" for name in fields[kind])]
        for kind, meaning in EVENTS.items()
    ]
    processes = [[f"`{kind}`", meaning] for kind, meaning in PROCESSES.items()]
    return (
        "# Events\n\n"
        "`events.jsonl` in a run's directory has one JSON object per line. Functions in `callbacks=` and\n"
        "`Callback.on_event` receive the same objects. Every event has `kind`, `time` (Unix seconds) "
        "and `seconds`\n"
        "(seconds of the run, without interruptions). A step of full-batch training is an iteration. "
        "Callbacks\n"
        "and strategies of your own may write other kinds.\n\n"
        "## Events of a run\n\n"
        "The last column lists the fields that the source names. Some strategies add others, such as "
        "the parts of\n"
        "an objective and metrics by name.\n\n"
        + table(["kind", "meaning", "fields"], rows)
        + "\n## Events about processes\n\n"
        "Strategies `batch` and `downpour` write them. `name` is the process, and `sentence` or "
        "`reason` explains\n"
        "the event.\n\n" + table(["kind", "meaning"], processes)
    )


def written() -> dict[str, list[str]]:
    """Return the kinds that the source writes by a literal, with the fields that it names."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in _METHODS
                and _LOG.search(ast.unparse(node.func.value))
                and node.args
                and isinstance(node.args[0], ast.Constant)
                and isinstance(node.args[0].value, str)
                and not node.args[0].value.startswith("cluster_")
            ):
                found[node.args[0].value].update((each.arg, None) for each in node.keywords if each.arg)
    return {kind: list(names) for kind, names in found.items()}


def named() -> Iterator[str]:
    """Yield the kinds about processes that the source names."""
    for folder in ("ui", "run", "analysis", "training"):
        for file in (SOURCE / folder).rglob("*.py"):
            yield from re.findall(r"\"(cluster_[a-z_]+)\"", file.read_text(encoding="utf-8"))
