"""The packers in use, for bench_packing.py: each as a function from lengths to lists of indices.

Where a package is installed, its own code runs: `borrow` takes named functions out of a module's
source, so that the module's heavy imports are not needed (`pip install --no-deps` is enough). What
has no package, or no function of its own there, is written again here from its description, and
REWRITTEN says so.
"""

from __future__ import annotations

import ast
import bisect
import heapq
import types
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any, Literal

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Lengths = NDArray[np.int32]
Packs = list[list[int]]
Slots = list[list[list[int]]]

WORKLOAD = 24576
"""verl's and slime's cost of a sample: 24576 length + length**2, of a model 4,096 wide."""

REWRITTEN = {
    "greedy knapsack": "as in Megatron Energon's examples: pack by pack, the longest that fits",
    "FlowTrain": "arXiv 2606.23087: longest first, to the pack of least sum/L + (longest/L)**2",
    "slime": "first fit, halve the largest packs, Karmarkar-Karp over ranks by cost",
    "prime-rl": "first fit decreasing, halve the costliest packs, Karmarkar-Karp over ranks",
}


def borrow(package: str, path: str, names: set[str], **given: Any) -> Any:
    """Named functions and classes of an installed package's file, run with the names given; None
    where it is not installed."""
    try:
        source = distribution(package).locate_file(path).read_text()
    except (PackageNotFoundError, OSError):
        return None
    future = ast.parse("from __future__ import annotations").body
    body = [node for node in ast.parse(source).body if getattr(node, "name", None) in names]
    module = types.ModuleType(path)
    vars(module).update(given)
    exec(compile(ast.Module(future + body, []), path, "exec"), vars(module))
    return module


TRL = borrow(
    "trl",
    "trl/data_utils.py",
    {"_SegmentTree", "_pack_bfd", "_check_if_columns_can_be_packed"},
    defaultdict=defaultdict,
    deque=deque,
    Literal=Literal,
    np=np,
    pa=pa,
    pc=pc,
    pyarrow=pa,
)
AXOLOTL = borrow(
    "axolotl", "axolotl/utils/samplers/multipack.py", {"pack_group"}, numba=numba, np=np
)
VERL = borrow(
    "verl",
    "verl/utils/seqlen_balancing.py",
    {"karmarkar_karp", "get_seqlen_balanced_partitions"},
    heapq=heapq,
)
VEOMNI = borrow(
    "veomni",
    "veomni/data/dynamic_batching.py",
    {"DynBszBuffer", "BaseBatchingStrategy", "TextBatchingStrategy"},
)
BINPACKING = borrow("binpacking", "binpacking/to_constant_volume.py", set())


def trl_kernel(lengths: Lengths, max_tokens: int) -> Packs:
    """The loop of TRL's bfd strategy around its own segment tree, without the tables."""
    order = np.argsort(-lengths, kind="stable")
    tree, packs = TRL._SegmentTree(max_tokens), []
    tree.add(max_tokens)
    by_room: dict[int, deque[dict[str, Any]]] = defaultdict(deque)
    for length, sample in zip(lengths[order], order, strict=True):
        room = tree.search(length)
        if room < max_tokens:
            pack = by_room[room].popleft()
        else:
            pack = {"ids": [], "length": 0}
            packs.append(pack)
        pack["ids"].append(sample)
        pack["length"] += length
        if room < max_tokens and not by_room[room]:
            tree.remove(room)
        by_room[room - length].append(pack)
        if room > length:
            tree.add(room - length)
    return [pack["ids"] for pack in packs]


def trl_count(lengths: Lengths, max_tokens: int) -> int:
    """How many packs TRL's own function makes of a table of such samples."""
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    tokens = pa.LargeListArray.from_arrays(offsets, np.zeros(offsets[-1], np.int8))
    return len(TRL._pack_bfd(pa.table({"input_ids": tokens}), max_tokens))


def multipack(lengths: Lengths, max_tokens: int) -> Packs:
    """axolotl's multipack, one group, no limit on samples per pack."""
    packs: Packs = AXOLOTL.pack_group(lengths, 0, max_tokens, len(lengths), max_tokens, True)
    return packs


def binpacking_count(lengths: Lengths, max_tokens: int) -> int:
    from binpacking.to_constant_volume import to_constant_volume

    return len(to_constant_volume(lengths.tolist(), max_tokens))


def greedy_knapsack(lengths: Lengths, max_tokens: int) -> Packs:
    """Pack by pack, the longest sample that still fits."""
    pairs = sorted(
        zip(lengths.tolist(), range(len(lengths)), strict=True), key=lambda pair: pair[0]
    )
    sizes, samples = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    packs: Packs = []
    while sizes:
        pack, room = [], max_tokens
        while place := bisect.bisect(sizes, room):
            room -= sizes.pop(place - 1)
            pack.append(samples.pop(place - 1))
        packs.append(pack)
    return packs


def flowtrain(lengths: Lengths, max_tokens: int) -> Packs:
    """FlowTrain's cost, greedily: a pack's longest sample is its first, so only the sum counts."""
    packs: Packs = []
    tokens = np.zeros(len(lengths), np.int64)
    longest = np.zeros(len(lengths))
    for sample in np.argsort(-lengths, kind="stable").tolist():
        opened = len(packs)
        costs = (tokens[:opened] + lengths[sample]) / max_tokens + longest[:opened]
        costs[tokens[:opened] + lengths[sample] > max_tokens] = np.inf
        pack = int(costs.argmin()) if opened else 0
        if not opened or costs[pack] == np.inf:
            pack = opened
            packs.append([])
            longest[pack] = (lengths[sample] / max_tokens) ** 2
        packs[pack].append(sample)
        tokens[pack] += lengths[sample]
    return packs


OFFLINE: dict[str, tuple[Any, Callable[[Lengths, int], Packs]]] = {
    "TRL bfd": (TRL, trl_kernel),
    "multipack": (AXOLOTL, multipack),
    "greedy knapsack": (True, greedy_knapsack),
    "FlowTrain": (True, flowtrain),
}


def veomni_items(lengths: Lengths) -> list[dict[str, Any]]:
    """What VeOmni's strategy takes in, without the memory of real tokens."""
    return [{"input_ids": np.broadcast_to(np.int8(0), (1, n))} for n in lengths.tolist()]


def veomni(items: list[dict[str, Any]], max_tokens: int, window: int) -> tuple[Packs, list[int]]:
    """VeOmni's dynamic batching: the packs before the stream ends, and every sample's wait."""
    numbers = {id(item): number for number, item in enumerate(items)}
    packs: Packs = []
    waits: list[int] = []
    for number, batch in _veomni_batches(items, max_tokens, window):
        packs.append([numbers[id(item)] for item in batch])
        waits += [number - sample for sample in packs[-1]]
    return packs, waits


def veomni_alone(items: list[dict[str, Any]], max_tokens: int, window: int) -> int:
    """The same for the clock: the number of packs."""
    return sum(1 for _ in _veomni_batches(items, max_tokens, window))


def _veomni_batches(
    items: list[dict[str, Any]], max_tokens: int, window: int
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    strategy = VEOMNI.TextBatchingStrategy(
        max_tokens, buffer_size=window, get_length_fn=lambda item: item["input_ids"].shape[-1]
    )
    for number, item in enumerate(items):
        strategy.put_item(item)
        while strategy.is_ready_for_micro_batch():
            yield number, strategy.get_micro_batch(0)


def verl(lengths: Lengths, max_tokens: int, replicas: int) -> Slots:
    """verl's trainer: equal numbers of samples to the ranks by cost, then every rank's microbatches
    by cost, more of them until all ranks keep the limit."""
    costs = _workloads(lengths)
    whole = len(lengths) // replicas * replicas
    ranks = VERL.get_seqlen_balanced_partitions(costs[:whole], replicas, True)
    for place, sample in enumerate(range(whole, len(lengths))):
        ranks[place].append(sample)
    count = max(-(-int(lengths[rank].sum()) // max_tokens) for rank in ranks)
    while True:
        split = []
        for rank in ranks:
            parts = VERL.get_seqlen_balanced_partitions([costs[i] for i in rank], count, False)
            packs = [[rank[i] for i in part] for part in parts]
            packs.sort(key=lambda pack: -sum(costs[i] for i in pack))
            split.append(packs[::2][::-1] + packs[1::2])
        if all(lengths[pack].sum() <= max_tokens for packs in split for pack in packs):
            return [list(slot) for slot in zip(*split, strict=True)]
        count += 1


def slime(lengths: Lengths, max_tokens: int, replicas: int) -> Slots:
    packs = _first_fit(lengths, range(len(lengths)), max_tokens)
    return _deal(packs, lengths.tolist(), _workloads(lengths), replicas)


def prime_rl(lengths: Lengths, max_tokens: int, replicas: int) -> Slots:
    order = np.argsort(-lengths, kind="stable").tolist()
    costs = _workloads(lengths)
    return _deal(_first_fit(lengths, order, max_tokens), costs, costs, replicas)


def lpt(lengths: Lengths, max_tokens: int, replicas: int) -> Slots:
    """Costliest first to the cheapest pack with room, packs of like cost in one slot."""
    costs = np.array(_workloads(lengths), np.float64)
    slots = -(-int(lengths.sum()) // (max_tokens * replicas))
    while (packs := _lpt(lengths, costs, max_tokens, slots * replicas)) is None:
        slots += 1
    packs.sort(key=lambda pack: -costs[pack].sum())
    return [packs[start : start + replicas] for start in range(0, len(packs), replicas)]


FRAMEWORKS = {"verl": verl, "slime": slime, "prime-rl": prime_rl}


def _workloads(lengths: Lengths) -> list[int]:
    return [WORKLOAD * length + length * length for length in lengths.tolist()]


def _lpt(
    lengths: Lengths, costs: NDArray[np.float64], max_tokens: int, num_packs: int
) -> Packs | None:
    packs: Packs = [[] for _ in range(num_packs)]
    cost, room = np.zeros(num_packs), np.full(num_packs, max_tokens)
    for sample in np.argsort(-costs, kind="stable").tolist():
        open_ = np.flatnonzero(room >= lengths[sample])
        if len(open_) == 0:
            return None
        pack = int(open_[cost[open_].argmin()])
        packs[pack].append(sample)
        cost[pack] += costs[sample]
        room[pack] -= lengths[sample]
    return packs


def _first_fit(lengths: Lengths, order: Sequence[int], max_tokens: int) -> Packs:
    packs: Packs = []
    rooms: list[int] = []
    for sample in order:
        length = int(lengths[sample])
        place = next((k for k, room in enumerate(rooms) if room >= length), len(rooms))
        if place == len(rooms):
            packs.append([])
            rooms.append(max_tokens)
        packs[place].append(sample)
        rooms[place] -= length
    return packs


def _deal(packs: Packs, weights: list[int], costs: list[int], replicas: int) -> Slots:
    """Halves the heaviest packs until every rank has as many, and deals them by cost."""
    while len(packs) % replicas:
        place = max(
            (k for k, pack in enumerate(packs) if len(pack) > 1),
            key=lambda k: sum(weights[i] for i in packs[k]),
        )
        halves: Packs = [[], []]
        sums = [0, 0]
        for sample in sorted(packs[place], key=lambda i: -weights[i]):
            half = int(sums[0] > sums[1])
            halves[half].append(sample)
            sums[half] += weights[sample]
        packs[place] = halves[0]
        packs.append(halves[1])
    totals = [sum(costs[i] for i in pack) for pack in packs]
    ranks = VERL.get_seqlen_balanced_partitions(totals, replicas, True)
    return [[packs[rank[slot]] for rank in ranks] for slot in range(len(packs) // replicas)]
