"""Do simulated FlowTrain runs come out as the paper's tables say, and where not, why?

Question. FlowTrain (arXiv 2606.23087) reports the MFU of three vision-language models on 256
devices of 64 GB, of two other ways to train them, and of itself without each of its parts. What
does `flowengine simulate` say of the same, from shapes and a data sheet alone?

Method. bench/paper_graph.py has what the paper tells, and the assumptions where it does not:
infographics-like lengths, seeded; 256 packs of at most 8,192 tokens a step; a frozen encoder;
devices of 320 TFLOP/s. The plan is the allocator's. MFU counts model FLOPs, forward and backward,
over all devices there are, idle ones included. Nothing is set per row; the assumptions of the costs
are those of flowengine.plan.roofline. The simulation has no random part: a figure does not change
between runs.

Bars (--check): the flow is faster than both other ways and than itself without any part, on every
model; no way is faster than the language model alone; two encoders on 256 devices are allocated
within a second.

Result. See reports/.

    python bench/bench_paper.py [--quick] [--json FILE] [--check] [--encoder so400m|vit-2b]
"""

from __future__ import annotations

import json
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import click
from paper_graph import BACKBONES, ENCODERS, build

from flowengine.plan import (
    PARTS,
    Figures,
    Part,
    Roofline,
    Setting,
    make_plan,
    parse_fleet,
    read_workload,
    simulate_baseline,
    simulate_without,
)
from flowengine.plan.planner import make_allocation

DEVICES = 256
FLEET = "Ascend910B"
ROWS = ("flow", "monolithic", "synchronous", "bound", *(f"without {part}" for part in PARTS))
PAPER: dict[str, tuple[float, float, float]] = {
    "flow": (52.1, 54.8, 52.9),
    "monolithic": (40.0, 40.9, 31.2),
    "synchronous": (43.3, 47.4, 43.9),
    "without pool": (21.6, 44.4, 47.0),
    "without allocator": (39.5, 50.1, 48.9),
    "without scheduler": (46.1, 49.1, 47.2),
}
"""MFU in percent of VLM-6B, 32B and 72B. Megatron-LM is monolithic, DistTrain synchronous."""

SCALING = {64: 54.9, 128: 54.8, 256: 53.6}
"""MFU in percent by devices; taken here as VLM-32B with the batch in step with the devices."""


def make_setting(
    model: str, *, encoder: str, devices: int, steps: int, listens: bool = False
) -> Setting:
    """A model of the paper on so many devices, with a pack per device and step."""
    samples = 672 * devices // DEVICES
    graph = build(model=model, encoder=encoder, samples=samples, packs=devices, listens=listens)
    work = read_workload(graph, steps=steps)
    fleet = parse_fleet(f"{devices}x{FLEET}")
    costs = Roofline(graph, fleet, work.planned)
    return Setting(graph, work, costs, devices, str(fleet), fleet.device)


def percent(figures: Figures, *, devices: int) -> float:
    """MFU over all devices there are."""
    assert figures.mfu is not None
    return 100 * figures.mfu * figures.devices / devices


def measure_model(model: str, *, encoder: str, steps: int) -> dict[str, Any]:
    """All rows of one model."""
    setting = make_setting(model, encoder=encoder, devices=DEVICES, steps=steps)
    plan = make_plan(setting)
    layouts = plan.layouts
    none: tuple[Part, ...] = ()
    found = {"flow": simulate_without(setting, layouts=layouts, without=none)[0]}
    for part in PARTS:
        found[f"without {part}"] = simulate_without(setting, layouts=layouts, without=(part,))[0]
    for baseline in ("monolithic", "synchronous", "bound"):
        found[baseline] = simulate_baseline(setting, baseline)[0]
    return {
        "layouts": {name: str(layout) for name, layout in layouts.items()},
        "mfu": {row: percent(found[row], devices=DEVICES) for row in ROWS},
        "step_s": {row: found[row].step_s for row in ROWS},
        "devices": {row: found[row].devices for row in ROWS},
        "bubbles": found["flow"].bubbles,
    }


def measure_scaling(*, encoder: str, steps: int) -> dict[int, float]:
    """VLM-32B by devices."""
    found = {}
    for devices in SCALING:
        setting = make_setting("VLM-32B", encoder=encoder, devices=devices, steps=steps)
        figures, _ = simulate_without(setting, layouts=make_plan(setting).layouts)
        found[devices] = percent(figures, devices=devices)
    return found


def time_allocation(*, encoder: str) -> float:
    """Seconds to allocate 256 devices to two encoders and a model, once all is compiled."""
    took = []
    for _ in range(2):
        setting = make_setting("VLM-6B", encoder=encoder, devices=DEVICES, steps=4, listens=True)
        began = time.perf_counter()
        make_allocation(setting.graph, setting.work.planned, setting.model, devices=DEVICES)
        took.append(time.perf_counter() - began)
    return took[-1]


def bars(summary: dict[str, Any]) -> list[tuple[str, bool]]:
    """What must hold."""
    found = [("two encoders on 256 devices within a second", summary["allocation_s"] < 1.0)]
    for model, measured in summary["models"].items():
        step_s = measured["step_s"]
        others = [row for row in ROWS if row not in ("flow", "bound")]
        found += [(f"{model}: flow faster than {r}", step_s["flow"] < step_s[r]) for r in others]
        least = min(step_s.values())
        found.append((f"{model}: nothing faster than the model alone", step_s["bound"] <= least))
    return found


def show(summary: dict[str, Any]) -> None:
    """Prints the tables, and the bars that are missed."""
    models = summary["models"]
    click.echo(f"MFU in %, simulated (paper); encoder {summary['encoder']}")
    click.echo(f"{'':18s}" + "".join(f"{model:>16s}" for model in models))
    for row in ROWS:
        cells = []
        for model, measured in models.items():
            paper = PAPER.get(row)
            told = f"({paper[list(BACKBONES).index(model)]:.1f})" if paper else "(-)"
            cells.append(f"{measured['mfu'][row]:9.1f} {told:>6s}")
        click.echo(f"{row:18s}" + "".join(cells))
    for model, measured in models.items():
        seconds = ", ".join(f"{row} {measured['step_s'][row]:.3g}" for row in ROWS)
        click.echo(f"{model}: s a step: {seconds}")
        used = ", ".join(f"{name} {layout}" for name, layout in measured["layouts"].items())
        click.echo(f"{model}: {used}; {measured['devices']['flow']} devices")
    for devices, found in summary["scaling"].items():
        click.echo(f"VLM-32B on {devices} devices: {found:.1f} ({SCALING[int(devices)]})")
    click.echo(f"allocation, two encoders, 256 devices: {summary['allocation_s']:.2f} s")
    for name, held in bars(summary):
        click.echo(f"{'ok  ' if held else 'MISS'} {name}")


@click.command()
@click.option("--quick", is_flag=True, help="fewer steps, one model, under a minute")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="write the figures")
@click.option("--check", is_flag=True, help="exit 1 where a bar is missed")
@click.option("--encoder", type=click.Choice(list(ENCODERS)), default="so400m", show_default=True)
def main(quick: bool, json_file: Path | None, check: bool, encoder: str) -> None:
    """The paper's tables beside simulated ones."""
    steps = 4 if quick else 8
    models = ["VLM-32B"] if quick else list(BACKBONES)
    summary = {
        "encoder": encoder,
        "models": {name: measure_model(name, encoder=encoder, steps=steps) for name in models},
        "scaling": {} if quick else measure_scaling(encoder=encoder, steps=steps),
        "allocation_s": time_allocation(encoder=encoder),
        "date": date.today().isoformat(),
    }
    show(summary)
    if json_file is not None:
        json_file.write_text(json.dumps(summary, indent=2) + "\n")
    if check and not all(held for _, held in bars(summary)):
        sys.exit(1)


if __name__ == "__main__":
    main()
