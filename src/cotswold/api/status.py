"""The current activity of a run, its wait graph, or its end.

Knows: the run's directory, its lock, its status file. Does not know: the processes themselves (they report),
the terminal.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cotswold.api.run import Run
from cotswold.errors import UserError
from cotswold.ui import activity
from cotswold.ui import wait_graph as waiting
from cotswold.ui.describe import describe
from cotswold.ui.format import seconds_in_words

if TYPE_CHECKING:
    from cotswold.files import Holder
    from cotswold.host.stack_dump import StackDump

State = Literal["running", "ended", "killed", "not_started"]
_LATE_SECONDS = 5.0
"""Seconds without a report after which a run is late."""
_RECENT_SECONDS = 60.0

_OUTCOMES = {
    "counted": "counted",
    "torn": "torn",
    "refused": "refused",
    "lost": "lost and handed out again",
    "left_out": "left out",
}
"""Words for the outcomes of samples."""


@dataclass(frozen=True)
class Why:
    """The state of a run.

    Args:
        run: The run's directory.
        state: "running", "ended", "killed" or "not_started".
        sentences: Descriptions of the run, in order.
        status: The newest event of each kind and the time of writing (Unix seconds), for a run in progress or
            killed.
        stacks: Stacks of the run's processes on this machine, if requested.
    """

    run: Path
    state: State
    sentences: tuple[str, ...]
    """Descriptions of the run, in order."""
    status: Mapping[str, object] = field(default_factory=dict)
    """The newest event of each kind and the time of writing (Unix seconds), for a run in progress or
    killed.
    """
    stacks: tuple[StackDump, ...] = ()
    """Stacks of the run's processes on this machine, if requested."""


def why(run: str | Path | Run, *, stacks: bool = False) -> Why:
    """Describe the activity of a run and which processes wait for which, or how a run ended.

    The wait graph is only available for strategy `downpour`; for others, the progress is described. The run
    is not affected.

    Args:
        run: The run, or its directory.
        stacks: Dump the stacks of all threads of the run's processes on this machine; they are written to the
            run's logs and returned.

    Raises:
        RunError: if the directory contains no run.
        UserError: for stacks of a run that has ended or is on another machine.
        MachineError: if the run's files cannot be read.
    """
    from cotswold.files import holder_of
    from cotswold.run.loggers.status_file import read_status

    found = run if isinstance(run, Run) else Run(run)
    holder = holder_of(found.path)
    status = read_status(found.directory.status) or {}
    if holder is None:
        if stacks:
            raise UserError(f"no process trains {found.path}; stacks exist only for a run in progress")
        return _describe_ended(found, status)
    sentences = [
        _describe_process(found, holder, status),
        *_resume_note(found),
        *_describe_progress(status, holder.is_here),
    ]
    return Why(found.path, "running", tuple(sentences), status, _stacks(found, holder) if stacks else ())


def _describe_ended(run: Run, status: Mapping[str, object]) -> Why:
    """Describe a run without a training process."""
    events = run.events
    last = events[-1] if events else None
    if last is None:
        return Why(run.path, "not_started", (f"{run.path} has not started, and no process trains it",))
    if last["kind"] == "end":
        cause = f": {last['reason']}" if last.get("reason") else ""
        ended = _ENDS.get(str(last["status"]), str(last["status"]))
        if last["status"] in _SAVED:
            ended += f"; {'resume=True' if _has_own_module(run) else '--resume'} continues it"
        said = f"{run.path} {ended}{cause}"
        warning = [f"warning: {last['warning']}"] if last.get("warning") else []
        told = () if last["status"] == "finished" else _resume_note(run)
        return Why(run.path, "ended", (said, describe({**last, "reason": ""}) or "", *told, *warning))
    when = _clock(activity.figure(last, "time"))
    said = (
        f"{run.path} ended without saving: stopped at once, or killed; no process trains it, and its events "
        f"stop at {when}"
    )
    command = f"cotswold train --run {run.path} --resume"
    if _has_own_module(run):  # which the command line cannot supply
        command = f"cotswold.train(module, dataset, directory={str(run.path)!r}, resume=True, ...)"
    remedy = f"resume with: {command}"
    before = [f"before, {line}" for line in _describe_progress(status, is_here=False)]
    return Why(run.path, "killed", (said, *before, *_resume_note(run), remedy), status)


def _resume_note(run: Run) -> list[str]:
    """Return a sentence if the run does not promise an exact resume."""
    from cotswold.run import read_events

    if not run.directory.events.exists():
        return []
    start = next((event for event in read_events(run.directory.events) if event["kind"] == "start"), {})
    note = start.get("resume_note")
    return [str(note)] if note else []


_ENDS = {
    "finished": "has finished",
    "interrupted": "was stopped and saved",
    "limited": "was saved and stopped at its limit",
    "failed": "has failed",
}
_SAVED = ("interrupted", "limited")


def _has_own_module(run: Run) -> bool:
    """True if a Python program supplied the module; False if the recipe is missing."""
    return run.directory.recipe.is_file() and run.recipe.network.module is not None


def _describe_process(run: Run, holder: Holder, status: Mapping[str, object]) -> str:
    """Describe the training process of the run, and the time of its last report."""
    who = f"process {holder.process} on {holder.host} since {_clock(holder.since)}"
    said = f"{run.path} is in progress: {run.recipe.training.strategy}, {who}"
    if not status:
        return f"{said}; it is starting, without a report yet"
    late = time.time() - activity.figure(status, "time")
    if late > _LATE_SECONDS:
        from cotswold.host.stack_dump import describe_state

        state = describe_state(holder.process) if holder.is_here else ""
        process = f": process {holder.process} {state}" if state else "; --stacks shows its stack"
        return f"{said}; no report for {seconds_in_words(late)}{process}"
    return said


def _describe_progress(status: Mapping[str, object], is_here: bool) -> list[str]:
    """Describe the progress and the activity of each process, one sentence each."""
    latest = status.get("latest")
    if not isinstance(latest, Mapping):
        return []
    known = {name: each for name, each in latest.items() if isinstance(each, Mapping)}
    said = [
        line
        for name in ("warning", "step", "validation")
        if name in known and (line := describe(known[name]))
    ]
    if "portions" in known:
        portions = known["portions"]
        said.append(
            f"evaluation {portions.get('evaluation')}: {portions.get('portions_done')} of "
            f"{portions.get('portions')} portions, {portions.get('workers')} workers"
        )
    if "replicas" in known:
        now = known["replicas"]
        said += [
            _epoch(now),
            *waiting.table(now, is_here),
            *_process_events(status),
            *waiting.diagnose(now, is_here),
        ]
    elif "step" in known:
        said.append("the wait graph is only available for strategy downpour; --stacks shows each stack")
    return said


def _epoch(now: Mapping[str, object]) -> str:
    samples = now.get("samples")
    account = samples if isinstance(samples, Mapping) else {}
    words = [
        f"{activity.figure(account, name):,.0f} {words}"
        for name, words in _OUTCOMES.items()
        if account.get(name)
    ]
    epoch = f"epoch {activity.figure(now, 'epoch') + 1:.0f} of {activity.figure(now, 'epochs'):.0f}"
    in_flight = f"{activity.figure(now, 'samples_in_flight'):,.0f} in flight"
    return f"{now.get('activity')}; {epoch}; samples: {', '.join([*words, in_flight])}"


def _process_events(status: Mapping[str, object]) -> list[str]:
    """Return the changes among processes in the last minute."""
    now = activity.figure(status, "time")
    return [
        f"{seconds_in_words(now - activity.figure(each, 'time'))} ago: {line}"
        for each in activity.rows(status, "process_events")
        if now - activity.figure(each, "time") < _RECENT_SECONDS and (line := _describe_process_event(each))
    ]


def _describe_process_event(event: Mapping[str, object]) -> str:
    kind, name = str(event.get("kind")).removeprefix("cluster_"), event.get("name")
    said = event.get("reason") or event.get("sentence") or ""
    match kind:
        case "samples_lost" | "waiting":
            return str(said)
        case "recovered":
            return f"{activity.readable_name(str(name))} was lost on all servers and was restored from a disk"
        case "restored":
            return f"{name} resumes from its disk with {said}"
        case "disk":
            return f"{name}: {said}"
    return f"{name} {kind} ({said})" if said else f"{name} {kind}"


def _stacks(run: Run, holder: Holder) -> tuple[StackDump, ...]:
    from cotswold.host.stack_dump import is_supported, request_dumps

    if not holder.is_here:
        raise UserError(f"{run.path} is trained on {holder.host}; request its stacks there")
    if not is_supported():
        raise UserError("stacks need /proc, which only Linux has; use py-spy dump --pid here")
    try:
        return tuple(request_dumps(holder.process, run.directory.logs))
    except PermissionError as error:
        raise UserError(f"{run.path} is trained by another user; request its stacks as that user") from error


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds").partition("+")[0]


def lines(found: Why) -> Sequence[str]:
    """Return the result as lines."""
    said = list(found.sentences)
    for each in found.stacks:
        who = f"process{'es' if len(each.processes) > 1 else ''} {', '.join(map(str, each.processes))}"
        said += ["", f"{each.name} ({who}){''.join(f'; {state}' for state in each.states)}:"]
        said += each.text.splitlines() or ["    no answer within some seconds"]
    return said
