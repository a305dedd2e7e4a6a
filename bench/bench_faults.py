"""What is lost, doubled or left behind when things go wrong in the middle of a run?

Question. A training run is hit by one to four faults at random places. Is it then, in the end, the
run that nothing happened to? How soon is a death told? Is a run that is stuck told from one that is
slow, and is the right stage blamed?

Method. Every seed makes one run of one of five small graphs (training with feedback; two replicas
of encoder and model; staleness 1; recomputed activations without clipping; a pool that spills),
with faults drawn from the seed:

    kill         two to four workers, each killed at its n-th call of a function of the engine
    supervisor   the supervisor, likewise
    cut          a kill right before or after a part's tensors, its index, the manifest, the rename
    disk full    the same places without room on the disk
    spill full   three writes to the pool's disk tier find no room
    nan          a gradient that is not a number
    poison       a sample that kills whoever reads it, every time

A run that ends early is resumed until it is done. Its losses and weights are compared with those of
a run in which nothing happened, bit for bit; a stateful operator tells which samples it has seen;
what the run held is looked for afterwards. With a poison sample the packs differ, so there only
samples and steps are compared. Stalls: one worker never comes back from a method of its operator
or is stopped by SIGSTOP; the run must be given up, with that worker as the root cause.

Bars (--check): nothing wrong; every death told within 2 s.

Where it does not help: these graphs are tiny and fast. Faults of the machine itself (power, a
lying disk) are not had here.

    python bench/bench_faults.py [--seeds A:B] [--stalls A:B] [--quick] [--json FILE] [--check]
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from dataclasses import asdict
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import click

TESTS = str(Path(__file__).parents[1] / "tests")
SOON_S = 2.0


def _range(_: click.Context, __: click.Parameter, text: str) -> range:
    first, colon, last = text.partition(":")
    if not (first.isdigit() and colon and last.isdigit()):
        raise click.BadParameter(f"{text!r}: expected A:B")
    return range(int(first), int(last))


def measure_faults(seeds: range) -> list[dict[str, Any]]:
    """The verdicts on these seeds."""
    from campaign import judge, reference
    from campaign_graphs import GRAPHS

    references = {name: reference(name) for name in GRAPHS} if seeds else {}
    found = []
    for seed in seeds:
        found.append(asdict(judge(seed, references)))
        for wrong in found[-1]["wrong"]:
            click.echo(f"seed {seed} ({found[-1]['graph']}, {found[-1]['kind']}): {wrong}")
    return found


def measure_stalls(seeds: range) -> list[dict[str, Any]]:
    """What became of the stalls of these seeds."""
    from stalls import judge

    found = []
    for seed in seeds:
        snag, took_s, wrong = judge(seed)
        found.append({"seed": seed, "snag": asdict(snag), "took_s": took_s, "wrong": wrong})
        for text in wrong:
            click.echo(f"stall {seed} ({snag}): {text}")
    return found


def summarise(faults: list[dict[str, Any]], stalls: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures: runs and faults by kind, times until deaths were told, what was wrong."""
    told = [told for verdict in faults for told in verdict["told_s"]]
    took = [stall["took_s"] for stall in stalls]
    return {
        "runs": len(faults),
        "faults": sum(verdict["faults"] for verdict in faults),
        "faults_by_kind": dict(Counter(_by_kind(faults))),
        "faults_by_graph": dict(
            Counter(v["graph"] for v in faults for _ in range(v["faults"])).most_common()
        ),
        "deaths_told": len(told),
        "told_s_median": median(told) if told else None,
        "told_s_max": max(told, default=None),
        "stalls": len(stalls),
        "stall_told_s_max": max(took, default=None),
        "wrong": [text for each in [*faults, *stalls] for text in each["wrong"]],
    }


def _by_kind(faults: list[dict[str, Any]]) -> list[str]:
    return [verdict["kind"] for verdict in faults for _ in range(verdict["faults"])]


@click.command()
@click.option("--seeds", callback=_range, default="0:420", show_default=True)
@click.option("--stalls", callback=_range, default="0:60", show_default=True)
@click.option("--quick", is_flag=True, help="Seeds 0:12 and stalls 0:3.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write them here.")
@click.option("--merge", multiple=True, type=click.Path(path_type=Path), help="Earlier results.")
@click.option("--check", is_flag=True, help="Exit 1 if a bar is missed.")
def main(
    seeds: range,
    stalls: range,
    quick: bool,
    json_file: Path | None,
    merge: tuple[Path, ...],
    check: bool,
) -> None:
    """Have seeded faults, and print what became of them."""
    sys.path.insert(0, TESTS)
    began = time.monotonic()
    if quick:
        seeds, stalls = range(12), range(3)
    earlier = [json.loads(path.read_text()) for path in merge]
    all_faults = [verdict for each in earlier for verdict in each["verdicts"]]
    all_stalls = [stall for each in earlier for stall in each["planted"]]
    all_faults += measure_faults(seeds)
    all_stalls += measure_stalls(stalls)
    found = summarise(all_faults, all_stalls)
    found |= {"date": f"{date.today()}", "cores": os.cpu_count()}
    found["wall_s"] = time.monotonic() - began
    if json_file is not None:
        record = {**found, "verdicts": all_faults, "planted": all_stalls}
        json_file.write_text(json.dumps(record, indent=1))
    click.echo(json.dumps(found, indent=1))
    late = found["told_s_max"] is not None and found["told_s_max"] > SOON_S
    if check and (found["wrong"] or late):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
