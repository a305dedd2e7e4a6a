"""How many schedules and faults can the protocol be driven through, and would a mistake show?

Question. The simulator drives the runtimes' own protocol through seeded schedules with deaths of
workers and supervisors, torn writes, poison samples and interrupts. How many seeds a second does
one core do, does any fail, and how many seeds does it take until each planted mistake is found?

Method. Seeds from `--first` on, one after the other, in one process and one thread; time is
processor time. Then every mistake alone, from seed 0 on, until one seed fails or MOST are through.

Bars (--check): no seed fails; at most 6 ms a seed (20,000 in two minutes); every mistake is found,
and there are at least 12.

Result. See reports/. What it does not say: anything of sockets, shared memory, the disk tier or
arithmetic, in whose place something simpler stands.

    python bench/bench_simulator.py [--quick] [--seeds N] [--first N] [--json FILE] [--check]
"""

from __future__ import annotations

import json
import os
import sys
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import click

from flowengine.testing.simulator import MISTAKES, explore, find

MOST = 2000
MS_A_SEED = 6.0


def measure(seeds: int, *, first: int) -> dict[str, Any]:
    """The figures."""
    explore(range(50))  # Compiles and caches what is made once.
    found = explore(range(first, first + seeds))
    return {
        "seeds": found.seeds,
        "seconds": found.seconds,
        "ms_a_seed": 1000 * found.seconds / found.seeds,
        "events": found.events,
        "incarnations": found.incarnations,
        "faults": found.faults,
        "failed": found.failed,
        "mistakes": {
            mistake.name: _seeds_until(find(mistake, range(MOST))) for mistake in MISTAKES
        },
    }


def _seeds_until(found: Any) -> int | None:
    return found.seeds if found.failed else None


def bars(summary: dict[str, Any]) -> list[tuple[str, float, float]]:
    """What must hold: name, found, most."""
    missed = [name for name, seeds in summary["mistakes"].items() if seeds is None]
    return [
        ("failing seeds", len(summary["failed"]), 0),
        ("ms a seed", summary["ms_a_seed"], MS_A_SEED),
        ("mistakes missed", len(missed), 0),
        ("mistakes short of 12", max(0, 12 - len(summary["mistakes"])), 0),
    ]


def show(summary: dict[str, Any]) -> None:
    """Prints the figures."""
    for name, seeds in summary["mistakes"].items():
        click.echo(f"{name}: {'NOT FOUND' if seeds is None else f'found by seed {seeds - 1}'}")
    for seed, error in summary["failed"].items():
        click.echo(f"seed {seed} fails: {error}")
        click.echo(f"  python -m flowengine.testing.simulator --seed {seed}")
    in_seeds = [seeds for seeds in summary["mistakes"].values() if seeds is not None]
    click.echo(
        f"{summary['seeds']} seeds in {summary['seconds']:.0f} s: {summary['incarnations']} "
        f"incarnations, {summary['events']} events, {summary['faults']} faults; "
        f"{len(in_seeds)} of {len(summary['mistakes'])} mistakes found, in {median(in_seeds):.0f} "
        f"seeds at the median, {max(in_seeds)} at most"
    )
    for name, value, most in bars(summary):
        click.echo(f"{'ok  ' if value <= most else 'MISS'} {name}: {value:.2f} (at most {most:g})")


@click.command()
@click.option("--quick", is_flag=True, help="1,000 seeds, under a minute")
@click.option("--seeds", type=int, default=20_000, show_default=True)
@click.option("--first", type=int, default=0, show_default=True, help="the first seed")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="write the figures")
@click.option("--check", is_flag=True, help="exit 1 where a bar is missed")
def main(quick: bool, seeds: int, first: int, json_file: Path | None, check: bool) -> None:
    """The simulated protocol: seeds a second, failing seeds, planted mistakes found."""
    summary = measure(1000 if quick else seeds, first=first)
    summary |= {"cores": len(os.sched_getaffinity(0)), "date": date.today().isoformat()}
    show(summary)
    if json_file is not None:
        json_file.write_text(json.dumps(summary, indent=2) + "\n")
    if check and any(value > most for _, value, most in bars(summary)):
        sys.exit(1)


if __name__ == "__main__":
    main()
