"""`[training]` of strategy downpour.

Knows: fields, units and defaults. Does not know: what the strategy does with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from cotswold.recipe.bounds import hidden_maximum, items
from cotswold.recipe.schema.fields import (
    Fraction,
    NotNegative,
    Passes,
    Positive,
    Text,
    Times,
)
from cotswold.recipe.schema.strategy import LabelledTraining, LossObjective

LayerNumber = Annotated[int, Field(gt=0), hidden_maximum(1000)]
"""Number of a layer of the recipe, from 1."""


class DownpourTraining(LabelledTraining):
    """Layers, with labels, by replicas that do not wait for each other."""

    objective = LossObjective
    refused: ClassVar[Mapping[str, str]] = {
        "optimizer": "strategy downpour has rules of its own: set training.update_rule",
        "precision": "servers add gradients in float32: remove it",
    }

    strategy: Literal["downpour"] = "downpour"
    """`downpour`: replicas (`cluster.workers` processes) push gradients to parameter servers, which apply
    them on arrival, and pull parameters (Dean et al. 2012, section 4.1). Batch normalisation is not
    supported, because replicas would have different means. Each replica draws its own dropout.
    """
    batch_size: Times = 96
    """Samples per mini-batch."""
    epochs: Passes = 10
    """Passes over the training samples, summed over all replicas."""
    learning_rate: Positive = 0.05
    """Peak learning rate on the servers; with rule `deltas`, that of the replicas' local steps."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Decay of the learning rate over the run; `linear` and `cosine` fall to 0. No process counts the
    steps of all replicas, so the rate follows samples. Positions of samples over all epochs are assigned
    in order, and the rate of a push is that of its first sample's position. Skipped samples count as
    trained; samples of a lost replica are trained later at the rate of their position.
    """
    warmup: Fraction = 0.0
    """Fraction of the run over which the learning rate rises from 0, by sample positions."""
    weight_decay: NotNegative = 0.0
    """Weight decay: this factor times a weight, biases included, is added to its gradient in each step.
    The replica adds it to the gradients that it pushes, with the parameters that it pulled. For gradients
    sent as factors, the server adds it, with its current parameters.
    """
    clip_norm: Positive | None = None
    """Largest norm of a mini-batch's gradient; the replica scales a larger gradient down to it, before
    weight decay and before gradients are summed. Default: no clipping.
    """
    update_rule: Literal["sgd", "momentum", "adagrad", "deltas"] = "sgd"
    """Update rule of the servers. `sgd`: a step against the gradient. `momentum`: adds a fraction of the
    last step. `adagrad`: a learning rate per weight, divided by the root of the sum of squared gradients;
    all replicas share the sum. `deltas`: replicas take local SGD steps, push their change over
    `push_every` steps, and servers add the changes (Chilimbi et al. 2014, section 3.3; Hogwild). Adagrad
    does not combine with deltas: squares of summed steps are not squares of gradients.
    """
    momentum: Annotated[float, Field(gt=0, lt=1)] | None = None
    """For `momentum`: fraction of the last step that is kept. Default: 0.9. Every push of each of n
    replicas is a step, so momentum decays n times as fast.
    """
    pull_every: Times = 1
    """Steps of a replica between two pulls; `local_steps` sets the parameters used in the meantime."""
    local_steps: Literal["sgd", "none"] | None = None
    """Change of a replica's local parameters between two pulls, if `pull_every` is above 1. `sgd`: a
    local SGD step, w - rate · gradient, after each gradient, until the next pull replaces the parameters,
    as the client of Dean et al. 2012 does. `none`: the parameters stay fixed. Default: `sgd` with rules
    `sgd` and `momentum`, because the servers move in the same direction; `none` with `adagrad`, whose
    learning rate does not suit SGD steps, and with factors (`push_format`, `factor_layers`), because the
    replica then has no gradient. The same holds for several `cluster.processes` between two pulls. Rule
    `deltas` always takes local steps.
    """
    push_every: Times = 1
    """Steps of a replica that are summed into one push: gradients, or local steps with rule `deltas`."""
    push_format: Literal["auto", "gradient", "factors"] = "auto"
    """Format of pushed gradients of fully connected and local layers. `gradient`: M · N numbers for M
    inputs and N outputs. `factors`: activations and error terms, k (M · S + N) numbers for k samples per
    push if the layer's rows lie on S servers, which multiply them (Chilimbi et al. 2014, section 3.3).
    `auto`: factors if they are fewer numbers; never with local steps of the replica (`local_steps`, rule
    `deltas`), and never for a layer whose input is the samples themselves, or the samples after layers
    without weights. For such a layer the factors contain the samples: with `factors` they are sent to the
    servers. All other tensors are sent as gradients. Factors are summed in another order than on the
    replica, so the gradients differ by rounding.
    """
    factor_layers: Annotated[list[LayerNumber], items(1000)] = Field(default_factory=list)
    """Numbers of layers, from 1, whose weights are always sent as factors, even if their input is the
    samples; the output layer follows the last of [[network.layers]].
    """
    gradient_layers: Annotated[list[LayerNumber], items(1000)] = Field(default_factory=list)
    """Numbers of layers, from 1, whose weights are always sent as gradients."""
    unit_norm: bool = False
    """Normalise filters to norm 1, initially and on the server after each update. A filter is the weights
    of one output in fully connected layers and convolutions, of one neuron in local layers. The output
    layer and biases are not normalised.
    """
    max_staleness: Annotated[int, Field(ge=0), hidden_maximum(1_000_000)] | None = None
    """Largest staleness: updates that a shard may have applied between the pull that an update was
    computed from and that update. Default: no bound. With 0, a single replica gives the same bits as
    ordinary SGD.
    """
    staleness_policy: Literal["wait", "scale", "drop"] | None = None
    """Policy for updates beyond `max_staleness`. `wait` (default): updates of fast replicas wait for those of
    slow ones, and a replica does not compute during its own push or pull. `scale`: an update of staleness
    s is multiplied by `max_staleness` / s. `drop`: the update is discarded, and its samples count as refused.
    """
    epoch_fraction: Annotated[float, Field(gt=0, le=1)] = 0.75
    """Fraction of the replicas, or samples (`epoch_fraction_of`), after which an epoch ends (Chilimbi et al.
    2014: 75 % of the replicas).
    """
    epoch_fraction_of: Literal["replicas", "samples"] = "replicas"
    """Condition that ends an epoch. `replicas`: all samples are assigned, and `epoch_fraction` of the
    replicas have finished theirs. `samples`: `epoch_fraction` of the samples are done; samples not
    assigned by then are skipped and counted.
    """
    warm_start_samples: Annotated[int, Field(ge=0), hidden_maximum(1_000_000_000_000)] = 0
    """Number of samples that a single replica trains on first, while the others wait."""
    patience: Times | None = None
    """Stop after this many validations without a better loss; one validation follows each epoch, unless
    the previous one is still running.
    """
    device: Text = "cpu"
    """Device of replicas and of the evaluator: `cpu`; `cuda`, the CUDA devices of this machine in turn; or
    a device such as `cuda:0`. With CUDA a replica is one process of this machine, so `cluster.processes`,
    `mesh.grid` and `cluster.ray_address` are not possible. Parameter servers stay in CPU memory.
    """
    shard_kilobytes: Annotated[int, Field(gt=0), hidden_maximum(1_000_000)] = 1024
    """Approximate size of a shard in kilobytes; it holds whole rows. Each shard is updated and pulled
    separately.
    """
    record_traffic: bool = False
    """Record the traffic of each server in the folder `traffic` of the run, for `cotswold bench server
    --trace`: time, replica, kinds, shards and numbers of samples, no contents. After a resume only the
    newest part is kept.
    """

    factored_layers: ClassVar[tuple[str, ...]] = ("linear", "local")
    """Types of layers whose gradients can be pushed as factors."""

    @property
    def own_steps(self) -> Literal["none", "sgd", "pushed"]:
        """Local steps of replicas, and whether a push consists of them."""
        if self.update_rule == "deltas":
            return "pushed"
        if self.local_steps is not None:
            return self.local_steps
        has_steps = self.pull_every > 1 and self.update_rule != "adagrad" and not self.wants_factors
        return "sgd" if has_steps else "none"

    def sent(self, number: int) -> Literal["auto", "gradient", "factors"]:
        """Return the push format of a layer's weights; ``number`` counts layers from 1."""
        if self.own_steps != "none" or number in self.gradient_layers:
            return "gradient"
        return "factors" if number in self.factor_layers else self.push_format

    @property
    def wants_factors(self) -> bool:
        """True if some layers must be sent as factors, even if these are more numbers."""
        return self.push_format == "factors" or bool(self.factor_layers)

    @model_validator(mode="after")
    def _check_steps(self) -> DownpourTraining:
        if self.update_rule == "deltas" and self.local_steps is not None:
            raise ValueError('rule "deltas" pushes local steps of the replicas; remove local_steps')
        if self.local_steps == "sgd" and self.update_rule == "adagrad":
            raise ValueError(
                'rule "adagrad" divides its learning rate by the root of summed squares, which only servers '
                'have, so replicas cannot take SGD steps; set local_steps to "none"'
            )
        if self.wants_factors and self.own_steps != "none":
            raise ValueError(
                "a replica that takes local steps needs whole gradients and cannot push factors; "
                + (
                    'set update_rule to "sgd"'
                    if self.update_rule == "deltas"
                    else 'set local_steps to "none"'
                )
                + ', or remove "factors"'
            )
        both = sorted(set(self.factor_layers) & set(self.gradient_layers))
        if both:
            raise ValueError(
                f"layer {both[0]} is in both factor_layers and gradient_layers; remove it from one"
            )
        return self

    @model_validator(mode="after")
    def _check_staleness(self) -> DownpourTraining:
        if self.momentum is not None and self.update_rule != "momentum":
            raise ValueError(
                'momentum is for update_rule "momentum"; remove it, or set update_rule to momentum'
            )
        if self.staleness_policy is not None and self.max_staleness is None:
            raise ValueError("staleness_policy needs a bound; set max_staleness, or remove it")
        if self.staleness_policy == "scale" and self.max_staleness == 0:
            raise ValueError(
                'staleness_policy "scale" needs a max_staleness of at least 1, because it multiplies '
                "updates by it"
            )
        if self.max_staleness == 0 and (self.pull_every, self.push_every) != (1, 1):
            raise ValueError(
                "a max_staleness of 0 needs the newest parameters at each step; set pull_every and "
                "push_every to 1"
            )
        waits = self.max_staleness is not None and self.staleness_policy in (None, "wait")
        if waits and self.pull_every > self.push_every:
            raise ValueError(
                'staleness_policy "wait" needs the parameters from which each push is computed; set '
                "pull_every to push_every or less"
            )
        return self
