"""How fast does a tensor get from one process to another, and what is the limit?

Question. A producer makes each item by one pass of torch; a consumer in another process reads all
of it; at most 16 items are between them. How many items a second does the engine's channel carry,
from 1 KiB to 64 MiB, against what else people use, and against memcpy, which moves as many bytes as
the producer's pass? How long after it was made is an item in the consumer's hands, when nothing
else is under way? And what does an item cost in a graph of three no-op stages?

Method. Every round measures every transport once at each size, in two fresh processes of one torch
thread each; the order turns from round to round. Throughput is counted from the first fifth of the
items on. Ratios are taken within a round; the figures are medians over rounds.

Bars (--check): those of BARS, flowengine's items per second over a peer's, where it is installed.

Result. See reports/. Where it does not help: from 1 MiB on iceoryx2, which computes and reads in
place as well, is as fast.

    python bench/bench_channel.py [--quick] [--json FILE] [--check]
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from datetime import date
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
from channel_graphs import GRAPH_BARS, GRAPHS
from channel_peers import DEPTH, METHOD, TRANSPORTS, Transport, Work

KIB, MIB = 2**10, 2**20
SIZES = (KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB)
US = "flowengine"

_SMALL = {"pyzmq": 1.2, "multiprocessing.Queue": 2, "iceoryx2": 2}
_LARGE = {"iceoryx2": 0.95, "pyzmq": 2.3, "Arrow IPC": 2.3, "SPDL": 2.3, "memcpy": 0.85}
_LARGE |= {"multiprocessing.Queue": 4, "torch.multiprocessing": 4, "DataLoader": 4}
_MEDIUM = {"iceoryx2": 1, "pyzmq": 1.7, "SPDL": 2, "Arrow IPC": 2}
_MEDIUM |= {"multiprocessing.Queue": 5, "torch.multiprocessing": 5, "DataLoader": 5}
_PEERS = [transport.name for transport in TRANSPORTS if transport.name != US]
BARS: dict[int, dict[str, float]] = {
    KIB: _SMALL,
    64 * KIB: dict.fromkeys(_PEERS, 1.5),
    MIB: _MEDIUM,
    16 * MIB: _LARGE,
    64 * MIB: _LARGE,
}
PATIENCE_S = 30.0
LATENCY_BAR_S = 50e-6
LATENCY_OF_ICEORYX = 0.85


def memcpy_rate(size: int, *, rounds: int) -> float:
    """Copies of `size` bytes per second, one thread, the same memory again and again."""
    source, target = torch.rand(size // 4), torch.zeros(size // 4)
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        target.copy_(source)
        took.append(time.perf_counter() - began)
    return 1 / median(took)


def produce(transport: Transport, end: Any, work: Work) -> None:
    """The producer's process."""
    torch.set_num_threads(1)
    transport.produce(end, work)


def consume(
    transport: Transport, end: Any, work: Work, result: Connection, acks: Connection | None
) -> None:
    """The consumer's process: reads everything, then tells its rate or the median latency."""
    torch.set_num_threads(1)
    first, began, seen, latencies = max(work.count // 5, 2 * DEPTH), 0.0, 0, []
    for item in transport.consume(end, work):
        if acks is not None:
            latencies.append(time.perf_counter_ns() - int(item[:2].view(torch.int64)[0]))
        item.sum()
        if acks is not None:
            acks.send_bytes(b"")
        seen += 1
        if seen == first:
            began = time.perf_counter()
    took = time.perf_counter() - began
    assert seen == work.count, f"{transport.name}: {seen} of {work.count} items arrived"
    result.send(1e-9 * median(latencies[first:]) if acks is not None else (seen - first) / took)


def measure(transport: Transport, size: int, *, count: int, latency: bool) -> float:
    """Items per second, or seconds from an item's making to its arrival, in fresh processes."""
    context: Any = multiprocessing.get_context(METHOD)
    acknowledged, acks = context.Pipe(duplex=False) if latency else (None, None)
    work = Work(size, count, acknowledged)
    ends = transport.make(work)
    result, tell = context.Pipe(duplex=False)
    consumer = context.Process(target=consume, args=(transport, ends[1], work, tell, acks))
    workers = [consumer]
    if transport.pairs:
        workers.append(context.Process(target=produce, args=(transport, ends[0], work)))
    for worker in workers:
        worker.start()
    tell.close()
    try:
        if not result.poll(PATIENCE_S):
            raise click.ClickException(f"{transport.name} hangs at {size} bytes")
        rate: float = result.recv()
    except EOFError:
        raise click.ClickException(f"{transport.name} failed at {size} bytes") from None
    finally:
        for worker in workers:
            worker.join(2)
            worker.kill()
        transport.forget(ends)
    return rate


def measure_round(
    number: int, *, sizes: Sequence[int], quick: bool
) -> dict[str, dict[str, dict[str, float]]]:
    """Figures by kind, size and name."""
    figures: dict[str, dict[str, dict[str, float]]] = {"items_per_s": {}, "latency_s": {}}
    there = [transport for transport in TRANSPORTS if transport.is_installed()]
    turn = number % len(there)
    for size in sizes:
        budget = (64 if quick else 256) * MIB
        count = max(40 if quick else 80, min(budget // size, 1000 if quick else 4000))
        rates, waits = {"memcpy": memcpy_rate(size, rounds=30)}, {}
        for transport in there[turn:] + there[:turn]:
            rates[transport.name] = measure(transport, size, count=count, latency=False)
            waits[transport.name] = measure(transport, size, count=min(count, 200), latency=True)
        figures["items_per_s"][str(size)] = rates
        figures["latency_s"][str(size)] = waits
    return figures


def summarise(rounds: list[dict[str, dict[str, dict[str, float]]]]) -> dict[str, Any]:
    """Medians over rounds of every figure, and of flowengine's ratio to every other."""
    summary: dict[str, Any] = {"ratios": {}}
    for kind in ("items_per_s", "latency_s"):
        summary[kind] = {
            size: {name: median(r[kind][size][name] for r in rounds) for name in figures}
            for size, figures in rounds[0][kind].items()
        }
        summary["ratios"][kind] = {
            size: {
                name: median(r[kind][size][US] / r[kind][size][name] for r in rounds)
                for name in figures
                if name != US
            }
            for size, figures in rounds[0][kind].items()
        }
    summary |= {"rounds": len(rounds), "cores": len(os.sched_getaffinity(0))}
    return summary | {"torch": torch.__version__, "date": date.today().isoformat()}


def bars(summary: dict[str, Any]) -> list[tuple[str, float, float, bool]]:
    """What must hold: name, found, bound, and whether it is a least (else a most)."""
    found = []
    for size in map(int, summary["items_per_s"]):
        wanted = BARS.get(size, {})
        ratios = summary["ratios"]["items_per_s"][str(size)]
        found += [
            (f"{show_size(size)}: items/s over {name}", ratios[name], least, True)
            for name, least in wanted.items()
            if name in ratios
        ]
        latency = summary["ratios"]["latency_s"][str(size)]
        if "iceoryx2" in latency:
            name = f"{show_size(size)}: latency over iceoryx2"
            found.append((name, latency["iceoryx2"], LATENCY_OF_ICEORYX, False))
        if size <= 64 * KIB:
            wait = 1e6 * summary["latency_s"][str(size)][US]
            found.append((f"{show_size(size)}: latency, us", wait, 1e6 * LATENCY_BAR_S, False))
    for (size, name), least in GRAPH_BARS.items():
        rates = summary["graphs"].get(str(size), {})
        if name in rates:
            label = f"{show_size(size)}: three no-op stages over {name}"
            found.append((label, rates[US] / rates[name], least, True))
    return found


def show_size(size: int) -> str:
    """As people write it."""
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def show(summary: dict[str, Any]) -> None:
    """Prints the figures."""
    for title, kind, scale in (("items/s", "items_per_s", 1.0), ("p50 us", "latency_s", 1e6)):
        for size, figures in summary[kind].items():
            ordered = sorted(figures.items(), key=lambda pair: -pair[1])
            listed = ", ".join(f"{name} {scale * value:.0f}" for name, value in ordered)
            click.echo(f"{show_size(int(size)):>7s} {title}: {listed}")
    for size, rates in summary["graphs"].items():
        listed = ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items())
        click.echo(f"{show_size(int(size)):>7s} three no-op stages, items/s: {listed}")
    for name, found, bound, is_least in bars(summary):
        holds = found >= bound if is_least else found <= bound
        sign = ">=" if is_least else "<="
        click.echo(f"{'ok  ' if holds else 'MISS'} {name}: {found:.2f} (bar {sign} {bound:g})")


@click.command()
@click.option("--quick", is_flag=True, help="one round of few items, under a minute")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="write the figures")
@click.option("--check", is_flag=True, help="exit 1 where a bar is missed")
@click.option("--rounds", type=int, default=5, show_default=True)
@click.option("--size", "sizes", type=int, multiple=True, help="only items of so many KiB")
def main(
    quick: bool, json_file: Path | None, check: bool, rounds: int, sizes: tuple[int, ...]
) -> None:
    """Direct channels against other transports, and no-op graphs against other engines."""
    torch.set_num_threads(1)
    multiprocessing.get_context(METHOD).set_forkserver_preload(["__main__"])
    for transport in TRANSPORTS:
        if not transport.is_installed():
            click.echo(f"{transport.name} is not installed, left out")
    chosen = [size * KIB for size in sizes] or list(SIZES)
    measured = []
    for number in range(1 if quick else rounds):
        measured.append(measure_round(number, sizes=chosen, quick=quick))
        click.echo(f"round {number + 1} done", err=True)
    summary = summarise(measured)
    summary["graphs"] = {
        str(size): {name: rate(size) for name, rate in GRAPHS.items()}
        for size in (KIB, MIB)
        if size in chosen
    }
    show(summary)
    if json_file is not None:
        json_file.write_text(json.dumps(summary, indent=2) + "\n")
    missed = [
        f for _, f, bound, is_least in bars(summary) if (f < bound) == is_least and f != bound
    ]
    if check and missed:
        sys.exit(1)


if __name__ == "__main__":
    main()
