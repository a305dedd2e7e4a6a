"""The digit cards for bench_observe: every step the same work, and spans that can be switched off.

Whoever imports this module notes spans only while the switch is on; the workers of a run import it
with the graph. The switch lies in memory that all of them map, so that it is in effect at once.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from observe_switch import VARIABLE, Switch

from flowengine import Graph
from flowengine.api import Lengths, Sample
from flowengine.graphs.digit_cards import build
from flowengine.operators.sources import DigitCards
from flowengine.runtime.spans import SpanLog, Work

SAMPLES = 64


class SamePages(DigitCards):
    """The first step's pages, over and over."""

    def lengths(self, index: int) -> Lengths:
        return super().lengths(index % SAMPLES)

    def read(self, index: int) -> Sample:
        return super().read(index % SAMPLES)


def make_graph(steps: int) -> Graph:
    """As graphs/digit_cards.py, without its evaluation."""
    graph = build(steps=steps, samples=SAMPLES)
    graph.evaluations.clear()
    graph.stages = [stage for stage in graph.stages if stage.signature.outputs]
    graph.stages[0].what = SamePages()
    return graph


def _switch_spans(switch: Switch) -> None:
    """Makes SpanLog.add do nothing while the switch is off."""
    add = SpanLog.add

    def add_if_on(self: SpanLog, state: str, work: Work, began_s: float, ended_s: float) -> None:
        if switch.is_on:
            began_ns = time.perf_counter_ns()
            add(self, state, work, began_s, ended_s)
            switch.take(time.perf_counter_ns() - began_ns)

    SpanLog.add = add_if_on  # type: ignore[method-assign]


if VARIABLE in os.environ:
    _switch_spans(Switch(Path(os.environ[VARIABLE])))
