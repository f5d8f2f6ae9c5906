"""The processes that train a user's module: what they receive, and how they find each other.

Knows: the file that passes Python objects to ranks of this machine, facts that ranks compare. Does not know:
the training.

Ranks start as new processes. A module, data set, loss and components travel in one file (`api.objects`).
A factory, ``package.module:function``, is called in
every rank instead.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold import __version__
from cotswold.api.modules.request import ModuleRequest
from cotswold.api.objects import write_objects
from cotswold.errors import UserError
from cotswold.geometry import Grid

if TYPE_CHECKING:
    from cotswold.launch import World
    from cotswold.training.distributed import RankContext

PARTS = ("factory", "module", "dataset", "loss", "validation", "components")
"""The attributes of a request that are Python objects."""
_FILE = "objects.pkl"


@dataclass(frozen=True)
class ModuleLaunch:
    """The command line for the ranks of a module's run: one argument, a JSON object."""

    arguments_by_name: Mapping[str, object]
    module = "cotswold.api.modules.rank"
    environment: Mapping[str, str] = field(
        default_factory=lambda: {
            "PYTHONPATH": os.pathsep.join(str(Path(each).absolute()) for each in sys.path)
        }
    )
    """The module search path of this process, including the folder of a script, for the ranks."""

    @classmethod
    def from_request(cls, request: ModuleRequest, grid: Grid, folder: Path) -> ModuleLaunch:
        """Write a request's objects into ``folder``. Raises UserError for objects that cannot be pickled."""
        from cotswold.training.jobs.factories import imported

        if request.factory is not None and request.factory.startswith("__main__:"):
            raise UserError(
                f"{request.factory} is in the main program, which other processes do not run; move it "
                "to a module next to the program, and give that"
            )
        for name in (request.factory, request.loss):
            if isinstance(name, str) and ":" in name:
                imported(name)  # fails before processes start
        remedy = (
            "give the name of a function that makes module and data set in each, "
            'train("package.module:function", ...), or train in one process'
        )
        write_objects(folder / _FILE, {name: getattr(request, name) for name in PARTS}, remedy)
        return cls(
            {
                "objects": str(folder / _FILE),
                "directory": str(request.directory),
                "strategy": request.training.strategy,
                "settings": {
                    **request.training.model_dump(exclude={"strategy"}, exclude_unset=True),
                    **request.mesh.model_dump(exclude={"grid"}, exclude_unset=True),
                },
                "resume": request.resume,
                "grid": str(grid),
            }
        )

    def arguments(self, *, is_restart: bool, quiet: bool) -> list[str]:
        """Return the argument of each rank."""
        resume = "if_started" if is_restart else self.arguments_by_name["resume"]
        return [json.dumps({**self.arguments_by_name, "resume": resume, "quiet": quiet})]


@contextmanager
def join_ranks(world: World, request: ModuleRequest, grid: str | None) -> Iterator[RankContext]:
    """Join this rank to the others, which must have the same module and settings, in a `with` block."""
    import torch

    from cotswold.api.ranks import check_rank_count, context_of, token_file
    from cotswold.host import read_token, token_of
    from cotswold.launch import join

    assert request.module is not None, "made before"
    replicas = request.mesh.replicas
    rows = max(each for each in range(1, math.isqrt(world.size) + 1) if world.size % each == 0)
    shape = Grid(rows, world.size // rows) if grid is None else Grid.parse(grid)
    if replicas > 1:
        shape = Grid.parse(grid or "1x1")
        check_rank_count(replicas, shape, world.size)
    elif shape.size != world.size:
        raise UserError(
            f"a {shape} grid needs {shape.size} ranks, but {world.size} were started; start that number"
        )
    facts = {
        "Cotswold's version": __version__,
        "torch's version": torch.__version__.partition("+")[0],
        "the module": str({name: list(value.shape) for name, value in request.module.state_dict().items()}),
        "the settings": request.training.model_dump_json(),
        "the grid": str(shape),
        "the replicas": str(replicas),
    }
    secret = token_of(os.environ) or read_token(token_file(request.directory))
    with join(world, timeout_seconds=request.mesh.timeout, token=secret, facts=facts) as members:
        device = request.training.device.partition(":")[0]
        yield context_of(members, world, replicas, shape, device, secret)
