"""Checkpoints of served parameters, and the state from which a server resumes.

Knows: the tensors and state in a checkpoint of served parameters. Does not know: processes, clients, the
schedule.

A checkpoint contains each parameter by its name, and each vector of the rule as ``vector.NAME``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from cotswold.checkpoint import Checkpoint, CheckpointManager, TensorChunk
from cotswold.errors import CheckpointError, RunError, UserError
from cotswold.files import disk_errors, real_folder
from cotswold.optim.server_rules import Rule
from cotswold.shards.core.sample_ledger import SampleCounts

POINT = "x"
_VECTOR = "vector."
_IDENTITY = "cotswold serve"


class ServerCheckpoint:
    """The folder of checkpoints of served parameters, if any, and the state at the start of a server."""

    def __init__(self, folder: Path | None, model: nn.Module, rule: Rule) -> None:
        self._folder, self._rule = folder, rule
        self._names = [name for name, _ in model.named_parameters()]
        self._shapes = [tuple(each.shape) for each in model.parameters()]
        self.vectors: dict[str, Tensor] = {POINT: _flat(model)}
        """Vectors by name: the parameters, and those of the rule for a resumed server."""
        self.counts = SampleCounts()
        """Statistics of samples before this start."""
        self.pushes = 0
        """Number of pushes before this start."""

    @classmethod
    def open(cls, folder: Path | None, model: nn.Module, rule: Rule, *, resume: bool) -> ServerCheckpoint:
        """Open the state of a folder; with ``resume``, load its newest checkpoint.

        Raises UserError for a module that cannot be served. Raises RunError if the folder has checkpoints
        without ``resume``, or none with ``resume``; CheckpointError if a checkpoint is damaged or of another
        module.
        """
        found = cls(folder, model, rule)
        if folder is None:
            if resume:
                raise UserError("resume needs save, the folder with the checkpoints")
            return found
        with disk_errors(folder, RunError):
            real_folder(folder)
        checkpoints = found._checkpoints(folder)
        if resume:
            if checkpoints.latest(found._load).checkpoint is None:
                raise RunError(f"{folder} has no checkpoint to resume from; serve without resume")
        elif checkpoints.paths():
            raise RunError(f"{folder} already has checkpoints; resume from them, or save to another folder")
        return found

    @property
    def logs(self) -> Path | None:
        """Folder for the output of server processes; None to use that of this process."""
        if self._folder is None:
            return None
        logs = self._folder / "logs"
        with disk_errors(logs, RunError):
            logs.mkdir(exist_ok=True)
        return logs

    def save(self, vectors: Mapping[str, Tensor], pushes: int, account: SampleCounts) -> Path | None:
        """Write a checkpoint numbered by pushes; return None without a folder."""
        if self._folder is None:
            return None
        state: dict[str, object] = {
            "update_rule": self._rule.name,
            "vectors": [name for name in vectors if name != POINT],
            "account": dict(vars(account)),
        }
        return self._checkpoints(self._folder).save(pushes, self._pieces(vectors), state)

    def fill(self, model: nn.Module, point: Tensor) -> None:
        """Copy parameters into the module."""
        with torch.no_grad():
            for parameter, part in zip(model.parameters(), self._cut(point), strict=True):
                parameter.copy_(part)

    def _checkpoints(self, folder: Path) -> CheckpointManager:
        return CheckpointManager(folder / "checkpoints", identity=_IDENTITY)

    def _pieces(self, vectors: Mapping[str, Tensor]) -> Iterator[TensorChunk]:
        for name, part in zip(self._names, self._cut(vectors[POINT]), strict=True):
            yield TensorChunk(name, part)
        for name, vector in vectors.items():
            if name != POINT:
                yield TensorChunk(f"{_VECTOR}{name}", vector)

    def _load(self, checkpoint: Checkpoint) -> None:
        state = checkpoint.state
        names, account = state.get("vectors"), state.get("account")
        if not isinstance(names, list) or not isinstance(account, dict):
            raise CheckpointError(
                f"{checkpoint.path} does not describe served parameters; it has another version"
            )
        if state.get("update_rule") != self._rule.name:
            raise UserError(
                f"{checkpoint.path} has rule {state.get('update_rule')}, but the server has "
                f"{self._rule.name}; resume with the same rule, or start in another folder"
            )
        vectors = {POINT: torch.empty_like(self.vectors[POINT])}
        for name, part in zip(self._names, self._cut(vectors[POINT]), strict=True):
            checkpoint.read_into(name, part)
        for name in map(str, names):
            vectors[name] = torch.empty_like(vectors[POINT])
            checkpoint.read_into(f"{_VECTOR}{name}", vectors[name])
        self.vectors, self.counts, self.pushes = vectors, SampleCounts(**account), checkpoint.step

    def _cut(self, vector: Tensor) -> Iterator[Tensor]:
        start = 0
        for shape in self._shapes:
            stop = start + torch.Size(shape).numel()
            yield vector[start:stop].view(shape)
            start = stop


def _flat(model: nn.Module) -> Tensor:
    """Return a copy of the parameters in one vector on the CPU. Raises UserError for mixed dtypes."""
    found = list(model.parameters())
    kinds = {each.dtype for each in found}
    if kinds not in ({torch.float32}, {torch.float64}):
        named = ", ".join(sorted(str(kind) for kind in kinds)) or "none"
        raise UserError(
            f"the parameters of {type(model).__name__} are {named}; servers store them in one vector: "
            "convert all of them to float32, or to float64 (clients may have others)"
        )
    return torch.cat([each.detach().cpu().reshape(-1) for each in found])
