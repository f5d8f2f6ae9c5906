"""What replicas compute from, judged by what servers have said.

Knows: each answer that a replica puts in place, when it begins a step, versions and numbers that were said.
Does not know: what a replica asked for, why it takes an answer.

    a replica                                  what must be so
    puts a shard in its place                  its version does not go back within a session; its numbers are
                                               those that servers say of that version
    begins a step, where nothing is late       it has all that was said when it began the last but one: what
                                               it asks for behind each step comes while it computes the next
"""

from __future__ import annotations

from collections import deque

from tests.chaos.invariants import BrokenError, InvariantChecker

from cotswold.paramserver.core.replica_session import StepTask


class InstalledShards:
    """Those of all replicas."""

    def __init__(self, judge: InvariantChecker, *, is_prompt: bool) -> None:
        """``is_prompt``: whether what is asked for before a step has come when that is over."""
        self._judge, self._is_prompt = judge, is_prompt
        self._has: dict[tuple[str, int], dict[tuple[str, int], int]] = {}
        """By replica and session, and by bucket and shard: versions."""
        self._said: dict[tuple[str, int], deque[dict[tuple[str, int], int]]] = {}
        """What was said when each began its newest steps, likewise."""

    def begins(self, replica: str, task: StepTask) -> None:
        """A replica begins a step. Raises BrokenError."""
        key = replica, task.pull[0]
        has = self._has.setdefault(key, {})
        for pulled in task.installs:
            for shard, version, buffer in zip(pulled.shards, pulled.versions, pulled.buffers, strict=True):
                of = pulled.server, shard
                if version < has.get(of, -1):
                    raise BrokenError(f"{replica} puts version {version} of shard {shard} over {has[of]}")
                if self._judge.numbers.get((*of, version)) != buffer:
                    raise BrokenError(f"{replica} has {buffer} for version {version} of shard {shard}")
                has[of] = version
        said = self._said.setdefault(key, deque(maxlen=2))
        for of, version in said[0].items() if self._is_prompt and len(said) == 2 else ():
            if has[of] < version:
                raise BrokenError(
                    f"{replica} begins a step from version {has[of]} of shard {of[1]}, and {version} was "
                    "said two steps before"
                )
        said.append(dict(self._judge.versions))
