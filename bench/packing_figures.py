"""The figures of bench_packing.py: packs, time, memory, padding and waiting, by packer."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
import peers
from numpy.typing import NDArray
from workloads import KINDS, draw_lengths

from flowengine.schedule import StreamPacker, kernels, least_packs, pack, plan_step, warm

LIMITS = (4096, 8192, 16384, 32768)
STREAM_TOKENS, WINDOW = 16384, 64
REPLICAS, MICROBATCHES, FULL = 8, 4, 0.95

Row = dict[str, Any]
Lengths = NDArray[np.int32]
Packer = Callable[[Lengths, int], object]


def ours(lengths: Lengths, max_tokens: int) -> peers.Packs:
    ids, offsets = pack(lengths, max_tokens=max_tokens)
    return [ids[start:stop].tolist() for start, stop in pairwise(offsets.tolist())]


def decreasing(lengths: Lengths, max_tokens: int) -> None:
    """Best fit decreasing alone."""
    kernels.best_fit_decreasing(kernels.longest_first(lengths), lengths, max_tokens)


def offline(seed: int, *, quick: bool) -> list[Row]:
    """Packs by workload, limit and packer."""
    rows = []
    for workload in KINDS:
        for max_tokens in LIMITS:
            lengths = draw_lengths(workload, 10_000, max_tokens=max_tokens, seed=seed)
            row: Row = {"workload": workload, "max_tokens": max_tokens}
            row["bound"] = least_packs(lengths, max_tokens=max_tokens)
            row["ours"] = _count(ours(lengths, max_tokens), lengths, max_tokens)
            for name, (there, packer) in peers.OFFLINE.items():
                if there:
                    row[name] = _count(packer(lengths, max_tokens), lengths, max_tokens)
            if peers.TRL and peers.trl_count(lengths, max_tokens) != row["TRL bfd"]:
                raise click.ClickException("the loop in peers.py is no longer TRL's")
            if peers.BINPACKING and not quick:
                row["binpacking"] = peers.binpacking_count(lengths, max_tokens)
            rows.append(row)
    return rows


def speed(seed: int, *, rounds: int, num_samples: int) -> list[Row]:
    """Milliseconds for `mix` by limit and packer, and for a million samples nanoseconds each."""
    packers: dict[str, Packer] = {
        "ours": lambda lengths, limit: pack(lengths, max_tokens=limit),
        "best fit decreasing": decreasing,
        **{n: packer for n, (there, packer) in peers.OFFLINE.items() if there and n != "FlowTrain"},
    }
    rows: list[Row] = []
    for max_tokens in LIMITS:
        lengths = draw_lengths("mix", 10_000, max_tokens=max_tokens, seed=seed)
        times = _alternate(packers, lengths, max_tokens, rounds=rounds)
        rows.append({"samples": 10_000, "max_tokens": max_tokens, "ms": times})
    lengths = draw_lengths("mix", num_samples, max_tokens=8192, seed=seed)
    few = {name: packer for name, packer in packers.items() if name in ("ours", "TRL bfd")}
    times = _alternate(few, lengths, 8192, rounds=min(rounds, 3))
    each = {name: 1e6 * value / num_samples for name, value in times.items()}
    rows.append({"samples": num_samples, "max_tokens": 8192, "ns_per_sample": each})
    return rows


def memory(workload: str) -> float:
    """Bytes per sample above the input, for a million samples, in this process."""
    warm()
    lengths = draw_lengths(workload, 1_000_000, max_tokens=8192, seed=0)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak
    before = _peak_bytes()
    pack(lengths, max_tokens=8192)
    return (_peak_bytes() - before) / len(lengths)


def stream(seed: int, *, num_samples: int, rounds: int) -> list[Row]:
    """Padding as a part of the tokens, waits in samples, and time, by workload and packer."""
    rows = []
    for workload in KINDS:
        lengths = draw_lengths(workload, num_samples, max_tokens=STREAM_TOKENS, seed=seed)
        packs, waits = _our_stream(lengths)
        row: Row = {"workload": workload, "ours": _stream_figures(packs, waits, lengths)}
        blocks = [
            group
            for start in range(0, num_samples - 1023, 1024)
            for group in _blocks(lengths[start : start + 1024], start)
        ]
        row["blocks of 1,024"] = {"padding": _padding(blocks, lengths)}
        timed: dict[str, Packer] = {"ours": lambda lengths, _: _push_all(lengths)}
        if peers.VEOMNI:
            items = peers.veomni_items(lengths)
            row["VeOmni"] = _stream_figures(
                *peers.veomni(items, STREAM_TOKENS, WINDOW), lengths=lengths
            )
            timed["VeOmni"] = partial(_time_veomni, items)
        times = _alternate(timed, lengths, STREAM_TOKENS, rounds=rounds)
        for name, value in times.items():
            row[name]["us_per_sample"] = 1e3 * value / num_samples
        rows.append(row)
    return rows


def step(seed: int, *, steps: int) -> list[Row]:
    """The part of the time lost by waiting, mean over steps, by workload and packer."""
    rows = []
    for workload in KINDS:
        pool = draw_lengths(workload, 1000 * steps, max_tokens=STREAM_TOKENS, seed=seed)
        found: dict[str, list[float]] = {}
        worst = 1.0
        for _ in range(steps):
            room = int(FULL * REPLICAS * MICROBATCHES * STREAM_TOKENS)
            count = int(np.searchsorted(np.cumsum(pool, dtype=np.int64), room, side="right"))
            lengths, pool = pool[:count], pool[count:]
            for name, planner in _planners().items():
                found.setdefault(name, []).append(_waiting(planner(lengths), lengths))
            found.setdefault("bound", []).append(_least_waiting(lengths))
            totals = _costs(_our_step(lengths, "accumulate"), lengths).sum(axis=0)
            worst = max(worst, float(totals.max() / totals.mean()))
        figures = {name: float(np.mean(values)) for name, values in found.items()}
        rows.append({"workload": workload, "waiting": figures, "accumulated": worst})
    return rows


def _planners() -> dict[str, Callable[[Lengths], peers.Slots]]:
    planners: dict[str, Callable[[Lengths], peers.Slots]] = {
        "ours": lambda lengths: _our_step(lengths, "lockstep"),
        "LPT": lambda lengths: peers.lpt(lengths, STREAM_TOKENS, REPLICAS),
    }
    if peers.VERL:
        for name, planner in peers.FRAMEWORKS.items():
            planners[name] = lambda lengths, plan=planner: plan(lengths, STREAM_TOKENS, REPLICAS)  # type: ignore[misc]
    return planners


def _our_step(lengths: Lengths, sync: Any) -> peers.Slots:
    return plan_step(
        lengths,
        max_tokens=STREAM_TOKENS,
        replicas=REPLICAS,
        linear=1.0,
        quadratic=1 / peers.WORKLOAD,
        sync=sync,
    )


def _costs(slots: peers.Slots, lengths: Lengths) -> NDArray[np.float64]:
    """The cost of every pack: [slots, replicas]; refuses a pack above the limit."""
    tokens = lengths.astype(np.float64)
    costs = tokens * (1 + tokens / peers.WORKLOAD)
    if max(int(lengths[group].sum()) for slot in slots for group in slot) > STREAM_TOKENS:
        raise click.ClickException("a packer exceeded the limit")
    return np.array([[costs[group].sum() for group in slot] for slot in slots], np.float64)


def _waiting(slots: peers.Slots, lengths: Lengths) -> float:
    costs = _costs(slots, lengths)
    return float(1 - costs.mean() / costs.max(axis=1).mean())


def _least_waiting(lengths: Lengths) -> float:
    """No plan waits less: the first slot takes as long as the costliest sample, and holds no more
    cost beside it than the longest samples, cut to fit, have."""
    falling = np.sort(lengths)[::-1].astype(np.float64)
    costs = falling * (1 + falling / peers.WORKLOAD)
    room = (REPLICAS - 1) * STREAM_TOKENS - np.concatenate(([0.0], np.cumsum(falling[1:])[:-1]))
    beside = float((costs[1:] * np.clip(room / falling[1:], 0, 1)).sum())
    held = min(costs[0] * REPLICAS, costs[0] + beside)
    mean = costs.sum() / REPLICAS
    return float(1 - mean / max(mean, costs[0] + (costs.sum() - held) / REPLICAS))


def _our_stream(lengths: Lengths) -> tuple[peers.Packs, list[int]]:
    packer = StreamPacker(max_tokens=STREAM_TOKENS, window=WINDOW)
    packs, waits = [], []
    for number, length in enumerate(lengths.tolist()):
        for group in packer.push(number, length):
            packs.append(group)
            waits += [number - sample for sample in group]
    return packs, waits


def _time_veomni(items: list[Row], lengths: Lengths, max_tokens: int) -> None:
    peers.veomni_alone(items[: len(lengths)], max_tokens, WINDOW)


def _push_all(lengths: Lengths) -> None:
    packer = StreamPacker(max_tokens=STREAM_TOKENS, window=WINDOW)
    for number, length in enumerate(lengths.tolist()):
        packer.push(number, length)


def _blocks(lengths: Lengths, start: int) -> peers.Packs:
    ids, offsets = kernels.group(
        *kernels.best_fit_decreasing(kernels.longest_first(lengths), lengths, STREAM_TOKENS)
    )
    return [(ids[a:b] + start).tolist() for a, b in pairwise(offsets.tolist())]


def _stream_figures(packs: peers.Packs, waits: list[int], lengths: Lengths) -> Row:
    return {
        "padding": _padding(packs, lengths),
        "p99_wait": float(np.percentile(waits, 99)),
        "longest_wait": max(waits),
    }


def _padding(packs: peers.Packs, lengths: Lengths) -> float:
    return len(packs) * STREAM_TOKENS / sum(int(lengths[group].sum()) for group in packs) - 1


def _count(packs: peers.Packs, lengths: Lengths, max_tokens: int) -> int:
    """How many packs; refuses a packer that lost a sample or exceeded the limit."""
    if sorted(sample for group in packs for sample in group) != list(range(len(lengths))):
        raise click.ClickException("a packer lost a sample")
    if max(int(lengths[group].sum()) for group in packs) > max_tokens:
        raise click.ClickException("a packer exceeded the limit")
    return len(packs)


def _alternate(
    packers: dict[str, Packer],
    lengths: Lengths,
    max_tokens: int,
    *,
    rounds: int,
) -> dict[str, float]:
    """The median time of each packer in milliseconds, over rounds that take them in turn."""
    for packer in packers.values():
        packer(lengths[:1000], max_tokens)
    times: dict[str, list[float]] = {name: [] for name in packers}
    for _ in range(rounds):
        for name, packer in packers.items():
            start = time.perf_counter()
            packer(lengths, max_tokens)
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: median(values) for name, values in times.items()}


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in status if line.startswith("VmHWM")).split()[1])
