"""Supervised training of any network of a recipe's layers.

Knows: labels, losses, validation, early stopping. Does not know: files, clocks, the terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf

import torch
from torch import Tensor, nn
from torch.nn import functional

from cotswold.checkpoint import Checkpoint, Piece, SealedPiece
from cotswold.optim import rate_at
from cotswold.recipe import Recipe
from cotswold.recipe.schema import SupervisedTraining
from cotswold.training.networks import LayerNetwork, network_tensors
from cotswold.training.strategy import Batch, Measured

_HOST, _CUDA = "random", "random.cuda"
"""Names under which a checkpoint has random states: dropout draws where the network is."""

LabelledHeldOut = Callable[[], Iterable[Batch]]
"""Gives the held-out pictures and labels anew, in batches."""


class Supervised:
    """The strategy `supervised`: SGD with momentum through autograd, one phase of epochs."""

    phases = 1

    def __init__(
        self, network: LayerNetwork, recipe: Recipe, epoch_steps: float, held_out: LabelledHeldOut
    ) -> None:
        self.network = network
        self.recipe = recipe
        assert isinstance(recipe.training, SupervisedTraining), "the job chose by the strategy"
        self.training = recipe.training
        self.epoch_steps = epoch_steps
        self.held_out = held_out
        self.loss = class_loss(recipe)
        self.optimiser = torch.optim.SGD(
            [parameter for parameter in network.parameters() if parameter.requires_grad],
            lr=self.training.learning_rate,
            momentum=self.training.momentum,
            weight_decay=self.training.weight_decay,
        )
        self._momenta: list[Tensor] = []
        for parameter in self.optimiser.param_groups[0]["params"]:
            self._momenta.append(torch.zeros_like(parameter))
            self.optimiser.state[parameter]["momentum_buffer"] = self._momenta[-1]
        self.best_loss = inf
        self.improved = False
        self._epochs_without = 0
        self._device = torch.device(self.training.device)
        torch.manual_seed(self.training.seed)

    @property
    def parameters(self) -> int:
        """The weights of the layers, and of the stacks below them."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    def scores(self, pictures: Tensor) -> Tensor:
        """Scores ``(image, class)`` of pictures."""
        found: Tensor = self.network(pictures)
        return found

    def steps(self, phase: int) -> int:
        """Mini-batches in the epochs of the recipe; at least one."""
        return max(1, round(self.recipe.training.epochs * self.interval(phase)))

    def describe(self, phase: int) -> Mapping[str, object]:
        """The network's layers and weights."""
        return {
            "stack": "layers",
            "layers": [repr(layer) for layer in self.network.layers],
            "parameters": self.parameters,
        }

    def flops(self, phase: int) -> int:
        """Forward and both gradients of every product, one picture."""
        return self.network.update_flops

    def begin(self, phase: int, batch: Batch) -> None:
        """Nothing depends on the first pictures."""

    def go_on(self, phase: int) -> None:
        """Patience begins anew; momentum, and the best loss so far, stay."""
        self._epochs_without = 0

    def advance(self, phase: int, step: int, batch: Batch) -> Measured:
        """One step of SGD."""
        labels = needed(batch.labels)
        training = self.training
        rate = rate_at(step, self.steps(phase), training.learning_rate, training.schedule, training.warmup)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.network.train()
        self.optimiser.zero_grad(set_to_none=True)
        scores = self.scores(batch.pictures)
        loss = self.loss(scores, labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.optimiser.step()
        correct = (scores.detach().argmax(1) == labels).sum()
        return Measured(float(loss.detach()), {"accuracy": float(correct) / len(labels), "rate": rate})

    @torch.no_grad()
    def validate(self, phase: int) -> Measured | None:
        """Loss and accuracy on held-out pictures; remembers the best."""
        self.network.eval()
        count, loss, correct = 0, 0.0, 0
        for batch in self.held_out():
            labels = needed(batch.labels)
            scores = self.scores(batch.pictures)
            loss += float(self.loss(scores, labels)) * len(labels)
            correct += int((scores.argmax(1) == labels).sum())
            count += len(labels)
        if count == 0:
            return None
        loss /= count
        self.improved = loss < self.best_loss
        self._epochs_without = 0 if self.improved else self._epochs_without + 1
        self.best_loss = min(loss, self.best_loss)
        return Measured(loss, {"accuracy": correct / count})

    def interval(self, phase: int) -> int:
        """Once an epoch, which leaves out the pictures that make no whole batch."""
        return int(self.epoch_steps)

    def finished(self, phase: int) -> bool:
        """Whether patience has run out."""
        patience = self.training.patience
        return patience is not None and self._epochs_without >= patience

    def tensors(self, phase: int, step: int) -> dict[str, Tensor]:
        """Weights, momenta and the random state of dropout."""
        momenta = {f"momentum.{index}": momentum for index, momentum in enumerate(self._momenta)}
        return {**network_tensors(self.network), **momenta, _HOST: torch.get_rng_state()}

    def apart(self, phase: int, step: int) -> Iterable[Piece | SealedPiece]:
        """The random state of the device, where dropout draws on one."""
        if self._device.type == "cuda":
            yield Piece(_CUDA, torch.cuda.get_rng_state(self._device))

    def take_up(self, checkpoint: Checkpoint, phase: int, step: int) -> None:
        """The random state of the device; a checkpoint that was written without one gives a seed for it."""
        if self._device.type != "cuda":
            return
        if _CUDA in checkpoint.names:
            torch.cuda.set_rng_state(checkpoint.read(_CUDA), self._device)
        else:
            drawn = torch.Generator().set_state(checkpoint.read(_HOST))
            with torch.cuda.device(self._device):
                torch.cuda.manual_seed(int(torch.randint(1 << 62, (), generator=drawn)))

    def state(self) -> dict[str, object]:
        """What early stopping remembers."""
        best = None if self.best_loss == inf else self.best_loss
        return {"best_loss": best, "epochs_without": self._epochs_without}

    def restored(self, tensors: Mapping[str, Tensor], state: Mapping[str, object]) -> None:
        """Take over the random state and the memory of early stopping."""
        torch.set_rng_state(tensors[_HOST])
        best, without = state["best_loss"], state["epochs_without"]
        self.best_loss = best if isinstance(best, float) else inf
        self._epochs_without = without if isinstance(without, int) else 0


def class_loss(recipe: Recipe) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of scores ``(image, class)`` against labels ``(image,)``, mean over images."""
    if recipe.loss == "cross_entropy":
        return nn.CrossEntropyLoss()
    return one_against_all


def one_against_all(scores: Tensor, labels: Tensor) -> Tensor:
    """Logistic loss of one detector a class (Dean et al. 2012, section 5), summed over classes."""
    wanted = functional.one_hot(labels, scores.shape[1]).to(scores.dtype)
    return functional.binary_cross_entropy_with_logits(scores, wanted, reduction="sum") / len(labels)


def needed(labels: Tensor | None) -> Tensor:
    """The labels, which the recipe's schema has made sure of."""
    assert labels is not None, "a supervised run reads a labelled store"
    return labels
