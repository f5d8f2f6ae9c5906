"""Conjugate gradient and L-BFGS as torch optimisers, with a closure and parameter groups.

Knows: parameter groups, state dicts, ranks that must decide alike. Does not know: directions, line searches.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.tensor import DTensor

from cotswold.errors import UserError
from cotswold.optim.cg import BETAS, BetaName, CGMethod
from cotswold.optim.closure_objective import Closure, ClosureObjective, StoredVectors
from cotswold.optim.iteration import Iteration
from cotswold.optim.lbfgs import LBFGSMethod
from cotswold.optim.method import Method
from cotswold.optim.search.base import Search
from cotswold.optim.vectors.base import Combine, Dot, Drop
from cotswold.optim.vectors.dtensor import DTensorVectors
from cotswold.optim.vectors.local import TensorVectors
from cotswold.optim.vectors.replicated import ReplicaVectors

Group = dist.ProcessGroup | Literal["world"] | None
"""Ranks that average the closure's value and decide alike; ``"world"`` means all ranks of the default process
group, if it is initialised.
"""


class _Group(dict[str, Any]):
    """A parameter group whose missing learning rate raises an explanation."""

    def __missing__(self, name: str) -> Any:
        if name == "lr":
            raise UserError(
                "this optimiser has no learning rate: a line search finds every step; use it without a "
                "scheduler of torch.optim.lr_scheduler"
            )
        raise KeyError(name)


class JointOptimizer(torch.optim.Optimizer):
    """Base of `LBFGS` and `ConjugateGradient`: one vector of all parameters of all groups.

    A step runs one or more iterations of a method. The closure clears the gradients, computes the loss over
    the whole training set, calls `backward` and returns the loss. A group may set its own ``weight_decay``:
    the loss then includes half the squared parameters of the group times ``weight_decay``.
    """

    def __init__(
        self,
        params: Iterable[Any],
        settings: dict[str, Any],
        line_search: Search | None,
        weight_decay: float,
        max_iterations: int,
        cycle_iterations: int | None,
        group: Group,
    ) -> None:
        if max_iterations < 1:
            raise UserError(f"max_iterations must be at least 1, got {max_iterations}")
        if cycle_iterations is not None and cycle_iterations < 1:
            raise UserError(
                f"cycle_iterations must be at least 1, or None for a fixed loss; got {cycle_iterations}"
            )
        self._group = group
        self._created: tuple[StoredVectors, ClosureObjective, Method] | None = None
        self._learning: list[bool] = []
        self._search = line_search
        self.iteration: Iteration | None = None
        """Result of the last step's last iteration; `failure` says why the parameters did not move."""
        joint = {**settings, "max_iterations": max_iterations, "cycle_iterations": cycle_iterations}
        super().__init__(params, {**joint, "weight_decay": weight_decay})

    def _method(self, vectors: StoredVectors, objective: ClosureObjective) -> Method:
        raise TypeError("JointOptimizer is a base class: use LBFGS or ConjugateGradient")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group; the method restarts.

        Args:
            param_group: ``{"params": ...}``, optionally with its own ``weight_decay``.

        Raises:
            UserError: if the group sets an option that all groups share, or one that does not exist.
        """
        for name, value in param_group.items():
            if name in ("params", "param_names"):
                continue
            if name not in self.defaults:
                raise UserError(
                    f"a parameter group sets {name!r}, which {type(self).__name__} does not have: a line "
                    "search finds the step, and the only option of a group is weight_decay"
                )
            if name != "weight_decay" and value != self.defaults[name]:
                raise UserError(
                    f"a parameter group sets {name!r}, but all groups make one step together: set it in "
                    f"{type(self).__name__}(…) instead"
                )
        super().add_param_group(param_group)
        self.param_groups[-1] = _Group(self.param_groups[-1])
        if self.param_groups[-1]["weight_decay"] < 0:
            raise UserError(f"weight_decay must be 0 or more, got {self.param_groups[-1]['weight_decay']}")
        self._created = None

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Tensor:  # type: ignore[override]  # a closure is needed
        """Run ``max_iterations`` iterations.

        Args:
            closure: clears the gradients, computes the loss over the whole training set, calls `backward` and
                returns the loss.

        Returns:
            The loss at the new parameters: a tensor of one number.

        Raises:
            UserError: without a closure, or if the closure leaves no gradients.
            DivergedError: if the loss is not finite at the current parameters; they stay unchanged.

        Warns if no further progress is possible (`iteration.failure` says why).
        """
        if closure is None:
            raise UserError(
                f"{type(self).__name__}.step needs a closure that computes the loss and its gradients"
            )
        _, objective, method = self._create_method()
        objective.closure = closure
        try:
            for _ in range(self.defaults["max_iterations"]):
                done = self.iteration = method.step()
                if done.failure:
                    warnings.warn(f"the parameters do not change: {done.failure}", stacklevel=2)
                    break
        finally:
            method.flush()
            objective.write("x")
            objective.closure = None
        return torch.tensor(done.value, dtype=self.param_groups[0]["params"][0].dtype)

    def _create_method(self) -> tuple[StoredVectors, ClosureObjective, Method]:
        """Return the method; create a new one if the caller changed or froze parameters."""
        if self._created is not None:
            vectors, objective, _ = self._created
            objective.read("given")
            difference = Combine("given", ((1.0, "given"), (-1.0, "x")))
            (moved,) = vectors.run([difference, Dot("given", "given"), Drop("given")])
            if moved == 0.0 and self._learning == self._flags():
                return self._created
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        self._learning = self._flags()
        decays = [float(group["weight_decay"]) for group in self.param_groups for _ in group["params"]]
        group = self._ranks()
        copies = [parameter.detach().clone(memory_format=torch.contiguous_format) for parameter in parameters]
        vectors = _vectors(copies, group)
        objective = ClosureObjective(vectors, parameters, decays, group)
        self._created = vectors, objective, self._method(vectors, objective)
        return self._created

    def _flags(self) -> list[bool]:
        """``requires_grad`` of each parameter, in order."""
        return [parameter.requires_grad for group in self.param_groups for parameter in group["params"]]

    def __getstate__(self) -> dict[str, Any]:
        """State for deepcopy and pickle: the settings, and the method as in `state_dict`."""
        own = {"_group": self._group, "_search": self._search, "iteration": self.iteration}
        return {**super().__getstate__(), **own, "kept": self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({name: value for name, value in state.items() if name != "kept"})
        kept = state.get("kept")
        if kept is None:  # called by torch's load_state_dict
            return
        self._created, self._learning = None, []
        if kept["method"] is not None:
            self.load_state_dict(kept)

    def _ranks(self) -> dist.ProcessGroup | None:
        if self._group != "world":
            return self._group
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return None
        return dist.group.WORLD

    def state_dict(self) -> dict[str, Any]:
        """Return the state as torch does.

        Returns:
            The dict of `torch.optim.Optimizer.state_dict`. The method's scalars are in ``"method"`` (None
            before the first step), its vectors in the state of the parameters.
        """
        self.state.clear()
        if self._created is None:
            return {**super().state_dict(), "method": None}
        vectors, _, method = self._created
        kept = method.state()
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for name in kept.vectors:
            for parameter, part in zip(parameters, vectors[name], strict=True):
                self.state[parameter][name] = _like_parameter(parameter, part)
        found = super().state_dict()
        self.state.clear()
        return {**found, "method": dict(kept.values)}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from a state; load the module's parameters separately, as with any torch optimiser.

        Args:
            state_dict: the result of `state_dict` of an optimiser of the same class.

        Raises:
            UserError: if the state has no ``"method"``.
        """
        if "method" not in state_dict:
            raise UserError(f"not the state of a {type(self).__name__}: it has no 'method'")
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "method"})
        self.param_groups = [_Group(group) for group in self.param_groups]
        for group in self.param_groups:  # shared options keep the values of the constructor
            group.update({name: self.defaults[name] for name in self.defaults if name != "weight_decay"})
        parts, self._created = dict(self.state), None
        self.state.clear()
        if state_dict["method"] is None:
            return
        vectors, _, method = self._create_method()
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, parameter in enumerate(parameters):
            for name, values in parts[parameter].items():
                local = values.to_local() if isinstance(values, DTensor) else values
                vectors.make(name)[number].copy_(local.reshape(-1))
        method.load(state_dict["method"])


class LBFGS(JointOptimizer):
    """L-BFGS with a strong Wolfe line search.

    Args:
        params: parameters, or dicts of parameter groups, as for any torch optimiser.
        history_size: number of pairs (s, y) to keep.
        line_search: line search (default: as in `LBFGSMethod`).
        weight_decay: the loss includes ½ weight_decay · w² of every weight w; a group may override it.
        max_iterations: iterations per call of `step`.
        cycle_iterations: iterations after which the closure computes over other samples; None if its loss is
            fixed.
        group: ranks that average the loss and decide alike; "world" for all, None for this rank alone.

    Raises:
        UserError: if `history_size`, `max_iterations` or `cycle_iterations` is below 1, or `weight_decay` is
            negative.

    Source: Nocedal 1980.

    >>> w = torch.nn.Parameter(torch.ones(3))
    >>> optimiser = LBFGS([w])
    >>> def closure():
    ...     optimiser.zero_grad()
    ...     loss = ((w - 2) ** 2).sum()
    ...     loss.backward()
    ...     return loss
    >>> for _ in range(2):
    ...     loss = optimiser.step(closure)
    >>> bool(loss < 1e-9)
    True
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        history_size: int = 10,
        line_search: Search | None = None,
        weight_decay: float = 0.0,
        max_iterations: int = 1,
        cycle_iterations: int | None = None,
        group: Group = "world",
    ) -> None:
        if history_size < 1:
            raise UserError(f"history_size must be at least 1, got {history_size}")
        super().__init__(
            params,
            {"history_size": history_size},
            line_search,
            weight_decay,
            max_iterations,
            cycle_iterations,
            group,
        )

    def _method(self, vectors: StoredVectors, objective: ClosureObjective) -> Method:
        history, cycle = self.defaults["history_size"], self.defaults["cycle_iterations"]
        return LBFGSMethod(
            vectors, objective, history_size=history, line_search=self._search, cycle_iterations=cycle
        )


class ConjugateGradient(JointOptimizer):
    """Nonlinear conjugate gradient; its use is that of `LBFGS`.

    Args:
        params: parameters, or dicts of parameter groups, as for any torch optimiser.
        beta: formula of β in d ← −g + β d; see `BetaName`.
        line_search: line search (default: as in `CGMethod`).
        weight_decay: the loss includes ½ weight_decay · w² of every weight w; a group may override it.
        max_iterations: iterations per call of `step`.
        cycle_iterations: iterations after which the closure computes over other samples; None if its loss is
            fixed.
        group: ranks that average the loss and decide alike; "world" for all, None for this rank alone.

    Raises:
        UserError: if `beta` is unknown, `max_iterations` or `cycle_iterations` is below 1, or
            `weight_decay` is negative.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        beta: BetaName = "polak-ribiere",
        line_search: Search | None = None,
        weight_decay: float = 0.0,
        max_iterations: int = 1,
        cycle_iterations: int | None = None,
        group: Group = "world",
    ) -> None:
        if beta not in BETAS:
            raise UserError(f"beta must be one of {', '.join(map(repr, BETAS))}; got {beta!r}")
        super().__init__(
            params, {"beta": beta}, line_search, weight_decay, max_iterations, cycle_iterations, group
        )

    def _method(self, vectors: StoredVectors, objective: ClosureObjective) -> Method:
        beta, cycle = self.defaults["beta"], self.defaults["cycle_iterations"]
        return CGMethod(vectors, objective, beta=beta, line_search=self._search, cycle_iterations=cycle)


def _vectors(parameters: list[Tensor], group: dist.ProcessGroup | None) -> StoredVectors:
    if any(isinstance(parameter, DTensor) for parameter in parameters):
        return DTensorVectors(parameters)
    return TensorVectors(parameters) if group is None else ReplicaVectors(parameters, group)


def _like_parameter(parameter: Tensor, part: Tensor) -> Tensor:
    """Return a rank's part of a vector in the shape, and on the mesh, of a parameter."""
    if not isinstance(parameter, DTensor):
        return part.view(parameter.shape)
    return DTensor.from_local(
        part.view(parameter.to_local().shape),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
