"""As few packs as can be found.

`pack` is a pure function: equal arguments give equal packs, on every machine, and the same lengths
in another order give packs of the same lengths. A result is (ids, offsets), int64: pack k holds
samples ids[offsets[k]:offsets[k + 1]] in ascending order, and the packs come in the order of their
first samples.
"""

from __future__ import annotations

from collections.abc import Mapping

from numpy.typing import ArrayLike

from flowengine.schedule import kernels
from flowengine.schedule.fewest import fewest
from flowengine.schedule.lengths import Integers, TooLong, fitting, integers
from flowengine.schedule.limits import Limits


def pack(
    lengths: ArrayLike,
    *,
    max_tokens: int,
    sizes: Mapping[str, ArrayLike] | None = None,
    limits: Mapping[str, int] | None = None,
    too_long: TooLong = "error",
) -> tuple[Integers, Integers]:
    """Packs of at most `max_tokens`, few of them.

    lengths: tokens per sample, integers [n]; a NumPy array or an Arrow column.
    sizes, limits: what else a sample has, integers [n] by name, and how much of it a pack holds.
    too_long: what becomes of a sample that exceeds a limit. With "own-pack" it is a pack; with
        "dead-letter" it is in none; with "error" it raises TooLongError.

    Best fit decreasing (Johnson 1973); where that needs more packs than the bound L2 of Martello
    and Toth (1990), also a search with a look-ahead of 256 samples, and the better of the two. With
    limits: best fit decreasing, by tokens and by the part of its scarcest room that a sample takes
    (after Panigrahy et al. 2011), and the better of these.
    """
    if limits:
        several = Limits(lengths, max_tokens=max_tokens, sizes=sizes or {}, limits=limits)
        kept = several.confine(too_long)
        ids, offsets = kernels.group(*several.fewest())
    else:
        lone, kept = fitting(integers(lengths), max_tokens=max_tokens, too_long=too_long)
        ids, offsets = kernels.group(*fewest(lone, max_tokens))
    return (ids if kept is None else kept[ids]), offsets


def least_packs(lengths: ArrayLike, *, max_tokens: int) -> int:
    """How many packs every packing needs at least: the bound L2 of Martello and Toth (1990).

    lengths: tokens per sample, integers [n], none above `max_tokens`.
    """
    sizes, _ = fitting(integers(lengths), max_tokens=max_tokens, too_long="error")
    return int(kernels.lower_bound(kernels.longest_first(sizes), sizes, max_tokens))
