"""How long does training wait for a checkpoint?

Question. A trained stage keeps 200 MB of weights. How much longer do its steps take when a
checkpoint is made, and how long would a plain torch.save make it wait?

Method. One process trains a stack of linear layers with 50 million weights in fp32 (200 MB), once
with SGD (a checkpoint of 200 MB) and once with AdamW (600 MB), one thread, as a worker on a machine
of two cores does. Rounds of STEPS steps alternate: without a checkpoint; with one by the engine's
writer, begun after the first step's optimizer step; with torch.save there instead, which is not
even on the disk when it returns; and with torch.save and fsync. The stall is the time that a round
takes longer than the round without one before it, which counts everything: what is copied before
training goes on, what the writer's thread takes from it, waiting before the next optimizer step.
Its part that training itself stands still is told beside it: the calls into the writer.

Bars (--check): training stands still for less than 5 % of a step's time.

Where it does not help: on a machine whose cores are all busy with training the writer's thread
takes its time from it: two cores here, of which training uses one.

    python bench/bench_checkpoint.py [--quick] [--json FILE] [--check]
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
from torch import nn

from flowengine.checkpoint import Part, PartWriter, gather_training
from flowengine.checkpoint.disk import sync

WIDTH, LAYERS = 2048, 12
STEPS = 4
BAR = 0.05
Way = Callable[[int], float]


class Trained:
    """A model, its optimizer, and one step of them."""

    def __init__(self, optimizer: str, *, tokens: int) -> None:
        torch.manual_seed(0)
        self.module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        kind = torch.optim.SGD if optimizer == "SGD" else torch.optim.AdamW
        self.optimizer = kind(self.module.parameters(), lr=1e-4)
        self._x = torch.randn(tokens, WIDTH)

    def learn(self) -> None:
        """Forward and backward."""
        self.module(self._x).square().mean().backward()

    def part(self) -> Part:
        """What a checkpoint holds."""
        parameters = list(self.module.parameters())
        owners = dict(zip(parameters, parameters, strict=True))
        return gather_training(self.module, self.optimizer, {}, {}, owners)

    def step(self) -> None:
        """The optimizer's step."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def run_round(trained: Trained, begin: Way, settle: Callable[[], float]) -> tuple[float, float]:
    """Seconds of STEPS steps, and of these the seconds in `begin`, after the first step, and in
    `settle`, before the second's optimizer step."""
    began, still = time.perf_counter(), 0.0
    for step in range(STEPS):
        trained.learn()
        if step == 1:
            still += settle()
        trained.step()
        if step == 0:
            still += begin(step)
    return time.perf_counter() - began, still


def measure(optimizer: str, *, rounds: int, tokens: int, folder: Path) -> dict[str, Any]:
    """The figures for one optimizer."""
    trained = Trained(optimizer, tokens=tokens)
    writer = PartWriter("model")

    def engine(_: int) -> float:
        began = time.perf_counter()
        writer.write(folder / "part", trained.part())
        return time.perf_counter() - began

    def settle() -> float:
        began = time.perf_counter()
        writer.settle()
        return time.perf_counter() - began

    def plain(_: int, *, synced: bool = False) -> float:
        began = time.perf_counter()
        state = {"model": trained.module.state_dict(), "optimizer": trained.optimizer.state_dict()}
        torch.save(state, folder / "plain.pt")
        if synced:
            sync(folder / "plain.pt")
        return time.perf_counter() - began

    ways: dict[str, tuple[Way, Callable[[], float]]] = {
        "none": (lambda _: 0.0, lambda: 0.0),
        "engine": (engine, settle),
        "torch.save": (plain, lambda: 0.0),
        "torch.save, fsync": (lambda step: plain(step, synced=True), lambda: 0.0),
    }
    run_round(trained, *ways["none"])
    first = run_round(trained, *ways["engine"])[1]
    writer.wait()
    times: dict[str, list[float]] = {name: [] for name in ways}
    stills: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            total, still = run_round(trained, *way)
            times[name].append(total)
            stills[name].append(still)
            writer.wait()
    writer.close()
    step_s = median(times["none"]) / STEPS
    size = sum(p.stat().st_size for p in (folder / "part").iterdir())
    return {
        "checkpoint_mb": size / 1e6,
        "step_s": step_s,
        "first_still_s": first,
        "ways": {
            name: {
                "still_s": median(stills[name]),
                "still_share": median(stills[name]) / step_s,
                "longer_s": median(
                    one - none for one, none in zip(times[name], times["none"], strict=True)
                ),
            }
            for name in ways
            if name != "none"
        },
    }


@click.command()
@click.option("--quick", is_flag=True, help="One round of each.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write them here.")
@click.option("--check", is_flag=True, help="Exit 1 if a bar is missed.")
def main(quick: bool, json_file: Path | None, check: bool) -> None:
    """Measure what checkpoints cost, and print it."""
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(dir="."))
    try:
        found = {
            name: measure(name, rounds=1 if quick else 3, tokens=512, folder=folder)
            for name in ("SGD", "AdamW")
        }
    finally:
        shutil.rmtree(folder)
    for name, figures in found.items():
        click.echo(
            f"{name}: checkpoint of {figures['checkpoint_mb']:.0f} MB, step "
            f"{figures['step_s']:.2f} s, the first waits {1e3 * figures['first_still_s']:.1f} ms"
        )
        for way, each in figures["ways"].items():
            click.echo(
                f"  {way:18} stands still {1e3 * each['still_s']:7.1f} ms "
                f"({100 * each['still_share']:5.1f} % of a step); "
                f"{STEPS} steps take {1e3 * each['longer_s']:7.1f} ms longer"
            )
    if json_file is not None:
        json_file.write_text(
            json.dumps({"date": f"{date.today()}", "cores": os.cpu_count(), **found}, indent=1)
        )
    shares = [figures["ways"]["engine"]["still_share"] for figures in found.values()]
    if check and max(shares) > BAR:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
