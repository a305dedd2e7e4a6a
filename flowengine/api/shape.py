"""How large a transformer is: what its cost follows from before anything was measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TransformerShape:
    """A transformer's dimensions, in the terms that its costs are computed from.

    layers: blocks. width: of the residual stream. heads: query heads, each `head_width` wide
    (width / heads where it is 0). kv_heads: of keys and values, if fewer (0: as many). hidden: of
    the feed-forward layer; gated: three matrices there, not two. causal: a position sees the
    earlier ones of its sample alone. vocabulary: words to embed and predict, 0 for an encoder.
    positions_per_row: positions that make one feature row, e.g. 4 where 2 x 2 patches are merged.
    row_weights: weights applied once per feature row (a merger, a projector). position_weights:
    weights applied once per position outside the blocks (a patch embedding).
    """

    layers: int
    width: int
    heads: int
    hidden: int
    kv_heads: int = 0
    head_width: int = 0
    gated: bool = False
    causal: bool = False
    vocabulary: int = 0
    positions_per_row: int = 1
    row_weights: int = 0
    position_weights: int = 0

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "hidden", "positions_per_row"):
            if getattr(self, name) < 1:
                raise ValueError(f"shape: {name} is {getattr(self, name)}; expected at least 1")

    @property
    def attention_width(self) -> int:
        """Channels of all query heads together."""
        return self.heads * (self.head_width or self.width // self.heads)

    @property
    def block_weights(self) -> int:
        """Weights of the matrices of one block."""
        keys = self.attention_width * (self.kv_heads or self.heads) // self.heads
        attention = 2 * self.width * (self.attention_width + keys)
        return attention + (3 if self.gated else 2) * self.width * self.hidden

    @property
    def num_weights(self) -> int:
        """All weights, with an embedding and a head of their own."""
        words = 2 * self.vocabulary * self.width
        outside = self.row_weights + self.position_weights
        return self.layers * self.block_weights + words + outside
