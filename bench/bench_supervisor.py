"""Does the supervisor keep up with a thousand stages: what does its own work take per sample?

Question. The supervisor reads notices, keeps the ledger of steps and answers. Does that work per
sample stay flat when the number of workers and the samples per step grow together?

Method. A graph with N replicas of a trained encoder and a step of SAMPLES samples per replica, in
packs of PACK. Nothing is started: the notices that its workers would send in STEPS steps (plan,
packs, losses, encoded, reduce, norms, stepped, catalogue rows of every feature) are encoded
beforehand; then the coordinator decodes and handles them, and encodes its answers as a link would.
The time from the first notice to the last, over all samples; the median of rounds, sizes in turns.
Observers are not in it, nor sockets; credits and leases never come to the supervisor, workers
settle them alone.

Bar (--check): per sample at 1,000 workers within 1.5 times that at 100.

Result. See reports/. Where it does not help: it is the supervisor alone; a thousand real workers
also need a thousand sockets read.

    python bench/bench_supervisor.py [--quick] [--json FILE] [--check]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import click

from flowengine import Graph, Step
from flowengine.api import AdamW, GradientReturn, Lengths, Sample, Source
from flowengine.channel import Kind, Message
from flowengine.channel.message import decode, encode
from flowengine.operators.language import LanguageModel
from flowengine.operators.packing import CostPacker
from flowengine.operators.vision import VisionEncoder
from flowengine.runtime.coordinator import Coordinator
from flowengine.runtime.topology import Topology

SAMPLES, PACK, STEPS = 8, 4, 4
PARAMETERS = 40
BAR = 1.5


class Endless(Source[Sample]):
    """Is described, never read."""

    def read(self, index: int) -> Sample:
        raise NotImplementedError

    def lengths(self, index: int) -> Lengths:
        raise NotImplementedError


def wide_graph(replicas: int) -> Graph:
    """A graph with so many encoders."""
    adam = AdamW(lr=1e-3)
    graph = Graph("wide", step=Step(samples=SAMPLES * replicas), steps=STEPS, clip_norm=1.0)
    pages = graph.add(Endless(), name="pages")
    features = graph.add(
        VisionEncoder(output=12), pages, name="encoder", replicas=replicas, optimizer=adam
    )
    packs = graph.add(
        CostPacker(max_tokens=64), graph.pool(pages, features, capacity="8 GiB"), name="packer"
    )
    model = graph.add(LanguageModel(vocabulary=8, width=12), packs, name="model", optimizer=adam)
    graph.feedback(GradientReturn(), model["gradients"], to=features)
    return graph


def notices(replicas: int) -> Iterator[Message]:
    """What the workers of such a graph say in all steps."""
    for step in range(STEPS):
        samples = SAMPLES * replicas
        packs = samples // PACK
        yield "plan", step, samples, 16 * samples, 4 * samples, packs, 0.9
        yield "packs", {"step": [step] * packs, "tokens": [64] * packs, "cost": [1.0] * packs}
        yield "losses", step, 0, [(pack, 1.5, 4 * PACK) for pack in range(packs)]
        for replica in range(replicas):
            yield "catalogue", _entries(step, replica)
            yield "encoded", step, "encoder", 0
            yield "reduce", step, "encoder", replica, [True] * PARAMETERS
        for stage in ("encoder", "model"):
            yield "norms", step, stage, [0.1] * PARAMETERS
        for stage in ("encoder", "model"):
            yield "stepped", step, stage, 1e-3


def _entries(step: int, replica: int) -> dict[str, list[Any]]:
    ids = [replica * SAMPLES + i for i in range(SAMPLES)]
    numbers = dict.fromkeys(("sample", "pack", "size_bytes", "address", "tokens"), ids)
    times = {name: [float(i) for i in ids] for name in ("made_s", "returned_s")}
    texts = {name: [name] * SAMPLES for name in ("stage", "dtype", "tier", "state")}
    return {"step": [step] * SAMPLES, "shape": [[4, 12]] * SAMPLES, **numbers, **times, **texts}


def handle_all(replicas: int) -> float:
    """Seconds per sample for the coordinator's work."""
    frames = [encode((Kind.NOTICE, *notice))[4:] for notice in notices(replicas)]
    coordinator = Coordinator(
        Topology(wide_graph(replicas)),
        post=_send,
        observe=lambda _: None,
        clock=time.perf_counter,
    )
    began = time.perf_counter()
    for frame in frames:
        coordinator.handle(decode(frame))
    took = time.perf_counter() - began
    assert len(coordinator.losses) == STEPS
    return took / (STEPS * SAMPLES * replicas)


def _send(_: int, message: Message) -> None:
    encode(message)


@click.command()
@click.option("--quick", is_flag=True, help="Fewer rounds.")
@click.option("--json", "json_file", type=click.Path(path_type=Path))
@click.option("--check", is_flag=True, help="Exit 1 where the bar is missed.")
def main(quick: bool, json_file: Path | None, check: bool) -> None:
    """Measures and prints."""
    sizes, rounds = (10, 100, 1000), 3 if quick else 7
    found: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            found[size].append(handle_all(size - 3))
    figures = {size: 1e6 * median(times) for size, times in found.items()}
    ratio = figures[1000] / figures[100]
    for size, figure in figures.items():
        print(f"{size:>5} workers  {figure:7.1f} us per sample")
    print(f"1,000 against 100 workers: {ratio:.2f} (bar {BAR})")
    if json_file is not None:
        json_file.write_text(json.dumps({"us_per_sample": figures, "ratio": ratio}))
    if check and ratio > BAR:
        sys.exit(1)


if __name__ == "__main__":
    main()
