"""FLOPs of a training step for one sample, by the plan of the network: forward and gradient only, as the
papers count.

Knows: geometries of stacks. Does not know: tensors, batches.
"""

from __future__ import annotations

from collections.abc import Sequence

from cotswold.geometry import StackGeometry


def greedy_flops(stacks: Sequence[StackGeometry], trained: int) -> int:
    """Return the FLOPs for the update of one stack and the forward passes of the stacks below."""
    return stacks[trained].update_flops + sum(below.forward_flops for below in stacks[:trained])


def joint_flops(stacks: Sequence[StackGeometry]) -> int:
    """Return the FLOPs for each stack's update, its forward pass, and the gradient through it."""
    through = sum(stack.filters.product_flops for stack in stacks[1:])
    above = sum(stack.forward_flops for stack in stacks[:-1])
    return sum(stack.update_flops for stack in stacks) + above + through
