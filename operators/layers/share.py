"""How the tensor ranks of a gang share the matrix products of a model's blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle


def share_blocks(*, gated: bool) -> dict[str, ParallelStyle]:
    """The plan for all `blocks` of a module: every linear layer is shared by its output channels or
    its input channels (Megatron-LM, arXiv 1909.08053).

    A matrix that holds several side by side (queries, keys and values; gate and value) is put
    together again behind its product, since no cut of it has all heads of a group; so attention
    itself is computed by every rank.
    """
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    fused = ColwiseParallel(output_layouts=Replicate())
    joining = RowwiseParallel(input_layouts=Replicate())
    return {
        "blocks.*.qkv": fused,
        "blocks.*.out": joining,
        "blocks.*.up": fused if gated else ColwiseParallel(),
        "blocks.*.down": joining if gated else RowwiseParallel(),
    }
