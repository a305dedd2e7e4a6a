"""What does an item cost on the Ray runtime, against the local one and against plain Ray actors?

Question. Three stages, each in a process of its own: one makes items with one torch pass, one hands
them on, one reads them (bench/channel_graphs.py). How many items a second pass, and what does one
cost more than on the local runtime?

Method. Three ways, in turns, in one run on one machine and one Ray node: the local runtime; the Ray
runtime; plain Ray actors, of which each is called with the reference that the one before returned,
WINDOW of them under way, items as NumPy arrays (Ray moves these faster than tensors). The engine's
figure is that of the second of two steps, the peer's that of the items after the first WINDOW. The
median of rounds. Without ray, there is nothing to measure, and it says so.

Bar (--check): the Ray runtime passes at least as many items as plain actors, at every size.

Result. See reports/. Where it does not help: all is on one machine, so no network is in it.

    python bench/bench_ray.py [--quick] [--json FILE] [--check]
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import click
from channel_graphs import KIB, MIB, flow_rate, make

SIZES = {"1 KiB": KIB, "256 KiB": 256 * KIB, "1 MiB": MIB}
WINDOW = 64
ITEMS = 400


class Maker:
    """The first stage."""

    def make(self, index: int, size: int) -> Any:
        """An item."""
        return make(index, size).numpy()


class Passer:
    """The no-op."""

    def hand_on(self, item: Any) -> Any:
        """The item."""
        return item


class Reader:
    """Reads every item fully."""

    def read(self, item: Any) -> None:
        """Sums it up."""
        item.sum()


def actor_rate(size: int) -> float:
    """Plain Ray actors that pass object references."""
    import ray

    maker, passer, reader = (ray.remote(kind).remote() for kind in (Maker, Passer, Reader))
    count, under_way = max(100, min(ITEMS, 2**28 // size)), deque[Any]()
    began = 0.0
    for index in range(WINDOW + count):
        if index == WINDOW:
            ray.get(list(under_way))
            under_way.clear()
            began = time.perf_counter()
        item = passer.hand_on.remote(maker.make.remote(index, size))
        under_way.append(reader.read.remote(item))
        if len(under_way) >= WINDOW:
            ray.get(under_way.popleft())
    ray.get(list(under_way))
    took = time.perf_counter() - began
    for actor in (maker, passer, reader):
        ray.kill(actor)
    return count / took


WAYS: dict[str, Callable[[int], float]] = {
    "local": lambda size: flow_rate(size, most=ITEMS),
    "ray": lambda size: flow_rate(size, runtime="ray", most=ITEMS),
    "plain actors": actor_rate,
}


@click.command()
@click.option("--quick", is_flag=True, help="One round of fewer sizes.")
@click.option("--json", "json_file", type=click.Path(path_type=Path))
@click.option("--check", is_flag=True, help="Exit 1 where the bar is missed.")
def main(quick: bool, json_file: Path | None, check: bool) -> None:
    """Measures and prints."""
    if importlib.util.find_spec("ray") is None:
        print("left out: ray is not installed (flowengine[ray])")
        return
    from flowengine.runtime.cluster.connect import connected

    sizes = dict(list(SIZES.items())[:2]) if quick else SIZES
    with connected(None, num_cpus=8):
        rounds = [
            {(name, way): run(size) for name, size in sizes.items() for way, run in WAYS.items()}
            for _ in range(1 if quick else 2)
        ]
    rates = {key: median(each[key] for each in rounds) for key in rounds[0]}
    for (name, way), rate in rates.items():
        print(f"{name:>8}  {way:<12}  {rate:9.0f} items/s  {1e6 / rate:8.0f} us per item")
    ratios = {name: rates[name, "ray"] / rates[name, "plain actors"] for name in sizes}
    for name, ratio in ratios.items():
        print(f"{name:>8}  ray / plain actors  {ratio:.2f} (bar 1)")
    if json_file is not None:
        found = {f"{name}, {way}": rate for (name, way), rate in rates.items()}
        json_file.write_text(json.dumps({"items_per_s": found, "ratios": ratios}))
    if check and min(ratios.values()) < 1:
        sys.exit(1)


if __name__ == "__main__":
    main()
