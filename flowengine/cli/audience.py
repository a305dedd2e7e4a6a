"""Who looks at a run: the views on stdout, and what tells other programs of it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flowengine.errors import FlowError

if TYPE_CHECKING:
    from flowengine.graph import Graph
    from flowengine.observe.otel import OpenTelemetry
    from flowengine.observe.rates import Peak
    from flowengine.runtime.events import Observer

Address = tuple[str, int]
"""Host and port."""


@contextmanager
def exported(
    graph: Graph,
    run_dir: Path,
    *,
    prometheus: Address | None,
    tensorboard: bool,
    wandb: bool,
    peak: Peak | None,
) -> Iterator[list[Observer]]:
    """The observers that tell other programs of the run; closed afterwards."""
    with ExitStack() as closing:
        found: list[Observer] = []
        if prometheus is not None:
            from flowengine.observe.prometheus import Prometheus

            endpoint = Prometheus(host=prometheus[0], port=prometheus[1])
            closing.callback(endpoint.close)
            found.append(endpoint)
        if tensorboard:
            from flowengine.observe.tensorboard import TensorBoard

            writer = TensorBoard(run_dir / "tensorboard", peak=peak)
            closing.callback(writer.close)
            found.append(writer)
        if wandb:
            from flowengine.observe.report import describe_graph
            from flowengine.observe.weights_and_biases import WeightsAndBiases

            curves = WeightsAndBiases(run_dir, config=describe_graph(graph), peak=peak)
            closing.callback(curves.close)
            found.append(curves)
        from flowengine.observe.otel import OpenTelemetry, wanted_signals

        if signals := wanted_signals():
            try:
                exporter = OpenTelemetry(signals)
            except FlowError as error:
                click.echo(f"no telemetry: {error}", err=True)
            else:
                closing.callback(_close_exporter, exporter)
                found.append(exporter)
        yield found


def _close_exporter(exporter: OpenTelemetry) -> None:
    exporter.close()
    if exporter.trouble is not None:
        click.echo(f"opentelemetry: {exporter.trouble}", err=True)


@contextmanager
def shown(
    run_dir: Path, *, as_json: bool, quiet: bool, peak: Peak | None
) -> Iterator[list[Observer]]:
    """The observers that show the run on stdout; afterwards its report or summary."""
    from flowengine.observe import Aside, JsonLines, Progress

    try:
        if quiet:
            yield []
        elif as_json:
            lines = JsonLines(sys.stdout)
            try:
                yield [lines]
            finally:
                report = run_dir / "report.json"
                if report.exists():
                    lines.finish(json.loads(report.read_text(encoding="utf-8")))
        else:
            with Aside(Progress(peak=peak)) as progress:
                yield [progress]
    finally:
        _forget_closed_stdout()


def _forget_closed_stdout() -> None:
    """Python would fail at exit if the reader of stdout went away; the run has not failed."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
