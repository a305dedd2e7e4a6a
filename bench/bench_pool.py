"""Does the pool's allocator stay fast and whole under mixed sizes, and how fast is its disk?

Question. Payload sizes are heavy-tailed: many small ones, and now and then one that is a thousand
times larger. How long do a reservation and its release take, and how much of a segment can be
filled before something does not fit? Compared with first fit in address order, which is what one
writes first. And how fast do spans go to the disk tier and come back?

Method. Sizes are Pareto with exponent 1.1 from 4 KiB on, cut at 64 MiB; lifetimes are exponential;
the same sequence for both allocators, on a segment of 1 GiB with about two thirds in use, and once
more on one that is filled until something does not fit, whereupon others are freed until it does.
Fill is the share in use when something first does not fit. Rounds alternate;
figures are medians over rounds. Spilling and fetching move spans of 16 MiB; "again" is the file's
second use. The page cache takes part: these are not the disk's own rates.

Bars (--check): at least 1.5 times as fast as first fit with 2,000 ranges in use; a fill of at least
0.9 of first fit's.

Result. See reports/. Where it does not help: with few ranges in use first fit is as fast.

    python bench/bench_pool.py [--quick] [--json FILE] [--check]
"""

from __future__ import annotations

import heapq
import json
import os
import sys
import tempfile
import time
from bisect import bisect_left, insort
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import click
import numpy as np
import torch

from flowengine.pool import Allocator, Segment
from flowengine.pool.allocator import align
from flowengine.pool.tiers import Tiers

GIB, MIB = 2**30, 2**20
IN_USE = (20, 200, 2000)


class FirstFit:
    """The first free range in address order that fits; neighbours merge."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.used = capacity, 0
        self._starts, self._sizes = [0], {0: capacity}
        self._taken: dict[int, int] = {}

    def reserve(self, size: int) -> int | None:
        size = align(size)
        for index, start in enumerate(self._starts):
            room = self._sizes[start]
            if room >= size:
                del self._starts[index], self._sizes[start]
                if room > size:
                    insort(self._starts, start + size)
                    self._sizes[start + size] = room - size
                self._taken[start] = size
                self.used += size
                return start
        return None

    def free(self, offset: int) -> None:
        size = self._taken.pop(offset)
        self.used -= size
        index = bisect_left(self._starts, offset)
        if index < len(self._starts) and self._starts[index] == offset + size:
            size += self._sizes.pop(self._starts.pop(index))
        if index and self._starts[index - 1] + self._sizes[self._starts[index - 1]] == offset:
            self._sizes[self._starts[index - 1]] += size
            return
        self._starts.insert(index, offset)
        self._sizes[offset] = size


class Ranges(Protocol):
    """What both allocators do."""

    used: int
    capacity: int

    def reserve(self, size: int) -> int | None: ...

    def free(self, offset: int) -> None: ...


ALLOCATORS: dict[str, type[Any]] = {"flowengine": Allocator, "first fit": FirstFit}


def draw(count: int, *, in_use: int, seed: int) -> tuple[list[int], list[int]]:
    """Sizes in bytes, and lifetimes in reservations."""
    chance = np.random.default_rng(seed)
    sizes = np.minimum(4096 * (1 + chance.pareto(1.1, count)), 64 * MIB).astype(int)
    return sizes.tolist(), (1 + chance.exponential(in_use, count)).astype(int).tolist()


def churn(ranges: Ranges, sizes: list[int], lives: list[int]) -> tuple[float, list[float]]:
    """Seconds per reservation and release; the fill each time that something did not fit."""
    held: list[tuple[int, int]] = []
    fills = []
    began = time.perf_counter()
    for now, (size, life) in enumerate(zip(sizes, lives, strict=True)):
        while held and held[0][0] <= now:
            ranges.free(heapq.heappop(held)[1])
        offset = ranges.reserve(size)
        if offset is None:
            fills.append(ranges.used / ranges.capacity)
        while offset is None:
            ranges.free(heapq.heappop(held)[1])
            offset = ranges.reserve(size)
        heapq.heappush(held, (now + life, offset))
    return (time.perf_counter() - began) / len(sizes), fills


def measure_allocators(count: int, *, rounds: int) -> dict[str, Any]:
    """Microseconds by ranges in use, and how full a crowded segment gets."""
    times: dict[str, dict[str, list[float]]] = {name: {} for name in ALLOCATORS}
    fills: dict[str, list[float]] = {name: [] for name in ALLOCATORS}
    for number in range(rounds):
        for in_use in IN_USE:
            sizes, lives = draw(count, in_use=in_use, seed=number)
            for name in sorted(ALLOCATORS, reverse=bool(number % 2)):
                took, _ = churn(ALLOCATORS[name](GIB), sizes, lives)
                times[name].setdefault(str(in_use), []).append(1e6 * took)
        sizes, lives = draw(count, in_use=10**6, seed=number)
        for name in ALLOCATORS:
            fills[name] += churn(ALLOCATORS[name](GIB), sizes, lives)[1]
    return {
        "us": {n: {k: median(v) for k, v in by.items()} for n, by in times.items()},
        "fill": {name: median(found or [1.0]) for name, found in fills.items()},
        "worst_fill": {name: min(found or [1.0]) for name, found in fills.items()},
    }


def measure_disk(*, spans: int, rounds: int) -> dict[str, float]:
    """GiB per second to the disk tier and back, and of a copy within memory."""
    size = 16 * MIB
    found: dict[str, list[float]] = {"spill": [], "spill again": [], "fetch": [], "memcpy": []}
    source, target = torch.ones(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=".") as directory:
            tiers = Tiers(
                Segment.create(spans * size), Segment.on_disk(spans * size, Path(directory))
            )
            for pass_ in ("spill", "spill again"):
                tiers.host.bytes[:] = 1
                found[pass_].append(_rate(tiers.spill, spans, size))
                found["fetch"].append(_rate(tiers.fetch, spans, size))
            found["memcpy"].append(_rate(lambda *_: target.copy_(source), spans, size))
            tiers.host.close()
            tiers.disk.close()
    return {name: median(rates) for name, rates in found.items()}


def _rate(move: Any, spans: int, size: int) -> float:
    began = time.perf_counter()
    for index in range(spans):
        move(index * size, size)
    return spans * size / GIB / (time.perf_counter() - began)


def bars(summary: dict[str, Any]) -> list[tuple[str, float, float]]:
    """What must hold: name, found, least."""
    us, fill = summary["us"], summary["fill"]
    many = str(IN_USE[-1])
    return [
        ("speed over first fit, 2000 in use", us["first fit"][many] / us["flowengine"][many], 1.5),
        ("fill over first fit's", fill["flowengine"] / fill["first fit"], 0.9),
    ]


def show(summary: dict[str, Any]) -> None:
    """Prints the figures."""
    for name, by_use in summary["us"].items():
        listed = ", ".join(f"{us:.2f} us with {in_use} in use" for in_use, us in by_use.items())
        fill = f"fill {summary['fill'][name]:.3f}, worst {summary['worst_fill'][name]:.3f}"
        click.echo(f"{name:10s} {listed}; {fill}")
    click.echo(", ".join(f"{name} {rate:.2f} GiB/s" for name, rate in summary["disk"].items()))
    for name, found, least in bars(summary):
        click.echo(f"{'ok  ' if found >= least else 'MISS'} {name}: {found:.2f} (bar {least})")


@click.command()
@click.option("--quick", is_flag=True, help="one round of 50,000 reservations, under a minute")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="write the figures")
@click.option("--check", is_flag=True, help="exit 1 where a bar is missed")
@click.option("--rounds", type=int, default=3, show_default=True)
def main(quick: bool, json_file: Path | None, check: bool, rounds: int) -> None:
    """Allocation under heavy-tailed sizes, and the rates of the disk tier."""
    count, rounds = (50_000, 1) if quick else (1_000_000, rounds)
    summary = measure_allocators(count, rounds=rounds)
    summary["disk"] = measure_disk(spans=4 if quick else 32, rounds=rounds)
    summary |= {"count": count, "rounds": rounds, "cores": len(os.sched_getaffinity(0))}
    summary["date"] = date.today().isoformat()
    show(summary)
    if json_file is not None:
        json_file.write_text(json.dumps(summary, indent=2) + "\n")
    if check and any(found < least for _, found, least in bars(summary)):
        sys.exit(1)


if __name__ == "__main__":
    main()
