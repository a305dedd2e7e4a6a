"""Is there a packer that fills better, balances better or runs faster than flowengine.schedule?

Question. Against the packers people use today, on lengths as vision-language training sees them:
how many packs, how much padding, how much waiting, how long does it take?

Method. Seeded workloads (workloads.py), one thread, one run; every timing is the median over
rounds that take all packers in turn. Peers run their own code where their package is installed
(`pip install --no-deps trl verl axolotl veomni binpacking`) and are left out, saying so, where not;
peers.py tells which were written again from their description.

- offline: 10,000 samples, limits of 4k to 32k tokens; beside it the bound L2 that no packing beats.
- speed: `mix`, 10,000 samples, every limit; and a million at 8k, with the memory above the input.
- stream: look-ahead of 64 samples, 16k tokens; padding of the packs before the stream ends, and how
  many samples came between a sample and its pack.
- step: 8 replicas, 4 microbatches, 95 % full, cost L + L**2 / 24576; the part of the time that
  replicas wait in lock-step, mean over steps; with accumulation the worst replica over the mean.

Bars (--check): see `bars`. Result: see reports/. Where it does not help: offline, most workloads
leave nothing to gain on best fit decreasing, which is within 0.3 % of the bound; and where one
sample costs more than a mean pack, its slot waits for it whatever the packer does.

    python bench/bench_packing.py [--quick] [--json FILE] [--check] [--seed N] [--only SECTION]
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import click
import packing_figures
import peers

from flowengine.schedule import warm

Row = dict[str, Any]
MEMORY_OF = ("mix", "video")
SECTIONS = ("offline", "speed", "memory", "stream", "step")


def bars(figures: Row) -> list[tuple[str, float, float]]:
    """What must hold: name, found, and the most it may be."""
    found: list[tuple[str, float, float]] = []
    for row in figures["offline"]:
        others = [
            row[name] for name in row if name not in ("workload", "max_tokens", "bound", "ours")
        ]
        where = f"{row['workload']} {row['max_tokens']}"
        found.append((f"offline {where}: packs / best peer", row["ours"] / min(others), 1.0))
        if row["workload"] == "llava" and row["max_tokens"] in (8192, 16384) and "TRL bfd" in row:
            found.append((f"offline {where}: packs / TRL", row["ours"] / row["TRL bfd"], 0.995))
    for row in figures["speed"]:
        where = f"{row['samples']:,} at {row['max_tokens']}"
        times = row.get("ms") or row["ns_per_sample"]
        small = row["samples"] == 10_000
        limits = {
            "TRL bfd": 1 / 15 if small else 1 / 40,
            "greedy knapsack": 1 / 3.5,
            "multipack": 1.0,
        }
        for name in limits.keys() & times.keys():
            found.append((f"time {where} / {name}", times["ours"] / times[name], limits[name]))
        if small and "TRL bfd" in times:
            ratio = times["best fit decreasing"] / times["TRL bfd"]
            found.append((f"time {where}, best fit decreasing / TRL", ratio, 1 / 50))
    for row in figures["memory"]:
        name = f"memory of a million, {row['workload']}: bytes per sample"
        found.append((name, row["bytes_per_sample"], 32.0))
    for row in figures["stream"]:
        found += _stream_bars(row)
    for row in figures["step"]:
        found += _step_bars(row)
    return found


def _stream_bars(row: Row) -> list[tuple[str, float, float]]:
    mine, name = row["ours"], f"stream {row['workload']}"
    blocks = mine["padding"] / row["blocks of 1,024"]["padding"]
    found = [
        (f"{name}: padding / blocks of 1,024", blocks, 0.5),
        (f"{name}: longest wait in windows", mine["longest_wait"] / packing_figures.WINDOW, 5.0),
    ]
    if "VeOmni" in row:
        theirs = row["VeOmni"]
        most = 0.5 if row["workload"] == "text" else 0.2
        found += [
            (f"{name}: padding / VeOmni", mine["padding"] / theirs["padding"], most),
            (f"{name}: p99 wait / VeOmni", mine["p99_wait"] / theirs["p99_wait"], 2.2),
            (f"{name}: time / VeOmni", mine["us_per_sample"] / theirs["us_per_sample"], 1 / 8),
        ]
    return found


def _step_bars(row: Row) -> list[tuple[str, float, float]]:
    waiting, name = row["waiting"], f"step {row['workload']}"
    found = [
        (f"{name}: waiting / LPT", waiting["ours"] / waiting["LPT"], 0.8),
        (f"{name}: accumulated, worst / mean", row["accumulated"], 1.001),
    ]
    others = [waiting[other] for other in peers.FRAMEWORKS if other in waiting]
    if others:
        found.append((f"{name}: waiting / best framework", waiting["ours"] / min(others), 0.25))
    return found


def left_out() -> list[str]:
    """The peers that are not here."""
    packages = {"trl": peers.TRL, "axolotl": peers.AXOLOTL, "veomni": peers.VEOMNI}
    packages |= {"binpacking": peers.BINPACKING}
    packages |= {"verl (so verl, slime and prime-rl)": peers.VERL}
    return [name for name, module in packages.items() if not module]


def lines(figures: Row) -> Iterator[str]:
    """The figures as text."""
    for row in figures["offline"]:
        others = {
            name: value for name, value in row.items() if name not in ("workload", "max_tokens")
        }
        packs = ", ".join(f"{name} {value}" for name, value in others.items())
        yield f"offline {row['workload']} {row['max_tokens']}: packs {packs}"
    for row in figures["speed"]:
        unit = "ms" if "ms" in row else "ns_per_sample"
        times = ", ".join(f"{name} {value:.2f}" for name, value in row[unit].items())
        yield f"speed mix {row['samples']:,} at {row['max_tokens']}: {unit} {times}"
    for row in figures["stream"]:
        for name, each in row.items():
            if name != "workload":
                values = ", ".join(f"{key} {value:.5g}" for key, value in each.items())
                yield f"stream {row['workload']}: {name}: {values}"
    for row in figures["step"]:
        waiting = ", ".join(f"{name} {value:.5f}" for name, value in row["waiting"].items())
        yield f"step {row['workload']}: waiting {waiting}; accumulated {row['accumulated']:.5f}"
    for name, how in peers.REWRITTEN.items():
        yield f"written again from its description: {name} ({how})"
    for name in left_out():
        yield f"left out: {name} is not installed"


@click.command()
@click.option("--quick", is_flag=True, help="fewer samples, steps and rounds, under a minute")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="write the figures")
@click.option("--check", is_flag=True, help="exit 1 where a bar is missed")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--only", type=click.Choice(SECTIONS), multiple=True, help="these sections alone")
@click.option("--memory", type=str, hidden=True)
def main(
    quick: bool,
    json_file: Path | None,
    check: bool,
    seed: int,
    only: tuple[str, ...],
    memory: str | None,
) -> None:
    """flowengine.schedule against the packers in use."""
    if memory is not None:
        click.echo(packing_figures.memory(memory))
        return
    warm()
    rounds = 3 if quick else 7
    many, few = (100_000, 8_192) if quick else (1_000_000, 40_960)
    made: dict[str, Callable[[], Any]] = {
        "offline": lambda: packing_figures.offline(seed, quick=quick),
        "speed": lambda: packing_figures.speed(seed, rounds=rounds, num_samples=many),
        "memory": lambda: [
            {"workload": name, "bytes_per_sample": _memory(name)} for name in MEMORY_OF
        ],
        "stream": lambda: packing_figures.stream(seed, num_samples=few, rounds=rounds),
        "step": lambda: packing_figures.step(seed, steps=4 if quick else 16),
    }
    figures: Row = {
        **{name: make() if not only or name in only else [] for name, make in made.items()},
        "left_out": left_out(),
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "date": date.today().isoformat(),
        "seed": seed,
    }
    for line in lines(figures):
        click.echo(line)
    missed = 0
    for name, found, most in bars(figures):
        missed += found > most
        click.echo(f"{'MISS' if found > most else 'ok  '} {name}: {found:.4g} (bar {most:.4g})")
    if json_file is not None:
        json_file.write_text(json.dumps(figures, indent=2) + "\n")
    if check and missed:
        sys.exit(1)


def _memory(workload: str) -> float:
    """In a process of its own, whose peak nobody else has raised."""
    command = [sys.executable, __file__, "--memory", workload]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"the memory of {workload} failed:\n{done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])


if __name__ == "__main__":
    main()
