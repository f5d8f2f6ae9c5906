"""The parameter store on disk.

Knows: the files of all stacks, their part of a checkpoint. Does not know: the order of training.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType

from torch import Tensor

from cotswold import ops
from cotswold.checkpoint import StateDict, StateValue
from cotswold.errors import DiskFullError, MachineError
from cotswold.files import disk_errors, real_folder
from cotswold.host import available_bytes
from cotswold.nn import StackNetwork
from cotswold.recipe import Recipe
from cotswold.recipe.schema import JointTraining
from cotswold.training.jobs.memory_estimate import maps_bytes
from cotswold.training.models import network_tensors
from cotswold.training.parameters.base import Momenta
from cotswold.training.parameters.offload.memory_plan import (
    OTHER_BYTES,
    ROWS_FRACTION,
    disk_bytes,
    row_capacities,
)
from cotswold.training.parameters.offload.row_cache import RowThreads
from cotswold.training.parameters.offload.stack import FilterFiles, MomentumFiles, OffloadedStack


class OffloadedParameters:
    """The parameter store of a recipe's stacks in a folder, which is emptied on entry and removed on exit.

    With ``fresh`` the stacks start with random filters; otherwise a checkpoint fills them. ``momentum_name``
    gives the name of a stack's momentum in checkpoints; ``reading`` is the bytes of the shuffle buffer.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        *,
        fresh: bool,
        momentum_name: Callable[[int], str],
        reading: int = 0,
    ) -> None:
        with disk_errors(folder, MachineError):
            shutil.rmtree(real_folder(folder), ignore_errors=True)
            folder.mkdir(parents=True)
        self._folder, self._threads = folder, RowThreads()
        geometries = recipe.stack_geometries()
        maps = maps_bytes(recipe, recipe.training.batch_size)
        rows_bytes = int(ROWS_FRACTION * (available_bytes() - OTHER_BYTES - reading)) - maps
        room_of = row_capacities(geometries, rows_bytes, is_joint=isinstance(recipe.training, JointTraining))
        self._stacks = [
            OffloadedStack(
                geometry,
                recipe.sparsity(index),
                recipe.stack_objective.epsilon,
                recipe.training.seed,
                index,
                folder=folder / str(index),
                names=(f"network.stacks.{index}.filters", momentum_name(index)),
                room=room,
                threads=self._threads,
            )
            for index, (geometry, room) in enumerate(zip(geometries, room_of, strict=True))
        ]
        self.network = StackNetwork(self._stacks)
        self._initial = fresh

    def __enter__(self) -> OffloadedParameters:
        try:
            for stack in self._stacks if self._initial else ():
                stack.reset_parameters()
        except BaseException as error:  # free the disk again
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.__exit__(kind, error, trace)
        shutil.rmtree(self._folder, ignore_errors=True)  # the last checkpoint holds all state

    def zero_momentum(self, stacks: Collection[int]) -> None:
        """Set the momenta of these stacks to zero, and free the others."""
        for index, stack in enumerate(self._stacks):
            if index in stacks:
                stack.zero_momentum()
            else:
                stack.free_momentum()

    def step(
        self,
        stack: int,
        batch: Tensor,
        objective: ops.StackObjective,
        rule: ops.StepRule,
        *,
        upstream: Tensor | None = None,
        input_gradient: bool = False,
    ) -> ops.StackReport:
        """Take one step of SGD with momentum on a stack; the report describes the state before it."""
        return self._stacks[stack].step(
            batch, objective, rule, upstream=upstream, input_gradient=input_gradient
        )

    def state_dict(self, momenta: Momenta) -> StateDict:
        """Return the small tensors (α, norms and gain of every stack), and the files of filters and
        momenta.
        """
        values: dict[str, StateValue] = {}
        for name, tensor in network_tensors(self.network).items():
            if not name.endswith(".filters"):
                values[name] = tensor
        for stack in self._stacks:
            values[stack.rows.name] = FilterFiles(stack)
        for name, index in momenta.items():
            values[name] = MomentumFiles(self._stacks[index])
        return values


def check_disk(recipe: Recipe, directory: Path) -> None:
    """Raise DiskFullError if the files of a run do not fit on the disk of its directory, which may be
    missing.

    Space used by the run's checkpoints counts as free.
    """
    if not recipe.offloaded:
        return
    place = directory.absolute()
    held = {
        status.st_ino: 512 * status.st_blocks
        for path in directory.rglob("*.safetensors")
        if (status := path.stat())
    }
    while not place.exists():
        place = place.parent
    needed, free = disk_bytes(recipe), shutil.disk_usage(place).free + sum(held.values())
    if needed > free:
        raise DiskFullError(
            f"the filters and momenta of {recipe.name} need {needed / 1e9:.3g} GB under {directory} (one "
            f"generation in use and one per checkpoint), but {free / 1e9:.3g} GB are free; use another disk, "
            "or keep fewer checkpoints (training.checkpoints_kept = 1)"
        )
