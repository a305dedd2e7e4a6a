"""flowengine run: trains a graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from flowengine.cli.audience import Address, exported, shown
from flowengine.cli.replay import replay_command
from flowengine.cli.steps import STEPS
from flowengine.cli.target import load, takes_graph, user_code
from flowengine.errors import FlowError
from flowengine.nursery import open_nursery

if TYPE_CHECKING:
    from flowengine.graph import Graph
    from flowengine.observe.rates import Peak

LOOPBACK = "127.0.0.1"


def _address(_: click.Context, option: click.Parameter, text: str | None) -> Address | None:
    """The host, loopback where none is named, and the port of [HOST:]PORT."""
    if text is None:
        return None
    host, _colon, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise click.BadParameter(f"{text!r}: expected PORT or HOST:PORT", param=option)
    return host.strip("[]") or LOOPBACK, int(port)


NEWEST = "newest"
MEASURE = "measure"


def _peak(_: click.Context, option: click.Parameter, text: str | None) -> float | str | None:
    """A number above 0, or the word that has it measured."""
    if text is None or text == MEASURE:
        return text
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise click.BadParameter(f"{text!r}: expected a number above 0, or 'measure'", param=option)
    return value


def _peak_of(graph: Graph, asked: float | str | None) -> Peak | None:
    from flowengine.observe.rates import Peak, measure_peak

    if asked is None:
        return None
    return measure_peak(graph.dtype) if isinstance(asked, str) else Peak(asked, "stated")


MOST_PROFILED = 50


@click.command()
@takes_graph
@click.option(
    "--runtime",
    "--backend",
    "runtime",
    type=click.Choice(["local", "inline", "ray"]),
    default="local",
    show_default=True,
    help="A process per stage replica, everything in this process, or actors on a cluster.",
)
@click.option(
    "--address",
    metavar="HOST:PORT",
    help="The Ray cluster to run on.  [default: one on this machine, for this run]",
)
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="A new or empty directory.  [default: runs/<graph>-<UTC time>]",
)
@click.option(
    "--resume",
    is_flag=False,
    flag_value=NEWEST,
    metavar="[PATH]",
    help="Go on behind a checkpoint, or behind the newest of a run directory; without PATH, of the "
    "newest run of this graph in runs/ that has one.",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=4,
    show_default=True,
    help="How often to go back to the last checkpoint after a worker's death.",
)
@click.option(
    "--stall-s",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Give up, and explain, after so many seconds in which nobody is at work; after ten times "
    "as many in which nobody finishes a piece of work.",
)
@click.option(
    "--torch-profiler",
    type=STEPS,
    default=(),
    help="Note the operators and kernels of these steps, as in 10-12,50, for `flowengine trace`.",
)
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Replicas and threads as flowengine plan chose them; the report has its prediction.",
)
@click.option(
    "--without",
    multiple=True,
    type=click.Choice(["pool", "allocator", "scheduler"]),
    help="Leave a part out: hand-over pack by pack, one worker per stage, samples packed as they "
    "come.",
)
@click.option("--json", "as_json", is_flag=True, help="Events as JSON lines, the report last.")
@click.option("--quiet", is_flag=True, help="No progress and no summary.")
@click.option(
    "--prometheus",
    metavar="[HOST:]PORT",
    callback=_address,
    help="Serve metrics over HTTP; on loopback unless HOST says otherwise.",
)
@click.option(
    "--tensorboard", is_flag=True, help="Write TensorBoard events into the run directory."
)
@click.option("--wandb", is_flag=True, help="Log to Weights & Biases; WANDB_MODE=offline keeps it.")
@click.option(
    "--peak-flops",
    metavar="NUMBER|measure",
    callback=_peak,
    help="FLOP/s at most of all devices together, such as 989e12, or measure it: operations are "
    "counted, and the MFU is reported stage by stage.",
)
def run(
    target: str,
    settings: tuple[str, ...],
    runtime: Literal["local", "inline", "ray"],
    address: str | None,
    run_dir: Path | None,
    resume: str | None,
    max_restarts: int,
    stall_s: float,
    torch_profiler: tuple[range, ...],
    plan_file: Path | None,
    without: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    prometheus: Address | None,
    tensorboard: bool,
    wandb: bool,
    peak_flops: float | str | None,
) -> None:
    """Train the graph that build() in GRAPH.py returns.

    KEY=VALUE are arguments of build(), e.g. steps=100.
    """
    if as_json and quiet:
        raise click.UsageError("--json and --quiet exclude each other")
    if address is not None and runtime != "ray":
        raise click.UsageError("--address names a Ray cluster; it goes with --runtime ray")
    _refuse_many(torch_profiler)
    if runtime == "local":
        open_nursery()
    graph = load(target, settings)
    _refuse_beyond(torch_profiler, graph.steps)
    from flowengine import launch
    from flowengine.graph import check

    predicted = _arrange(graph, plan_file, without)
    with user_code(target.partition(":")[0]):
        check(graph)
    behind = _checkpoint(resume, graph.name) if resume is not None else None
    try:
        run_dir = launch.make_run_dir(graph, run_dir)
    except OSError as error:
        raise click.BadParameter(str(error), param_hint="--run-dir") from None
    peak = _peak_of(graph, peak_flops)
    with (
        _telling_replay(target, settings, run_dir),
        exported(
            graph,
            run_dir,
            prometheus=prometheus,
            tensorboard=tensorboard,
            wandb=wandb,
            peak=peak,
        ) as exporters,
        shown(run_dir, as_json=as_json, quiet=quiet, peak=peak) as observers,
    ):
        launch.run(
            graph,
            runtime=runtime,
            address=address,
            run_dir=run_dir,
            resume=behind,
            max_restarts=max_restarts,
            stall_s=stall_s,
            torch_profiler=torch_profiler,
            peak=peak,
            predicted=predicted,
            observers=[*observers, *exporters],
        )


def _refuse_beyond(profiled: tuple[range, ...], steps: int | None) -> None:
    beyond = [part for part in profiled if steps is not None and part.start >= steps]
    if beyond:
        raise click.BadParameter(
            f"step {beyond[0].start}: the graph has {steps} steps, from 0 on",
            param_hint="--torch-profiler",
        )


def _refuse_many(profiled: tuple[range, ...]) -> None:
    count = sum(len(steps) for steps in profiled)
    if count > MOST_PROFILED:
        raise click.BadParameter(
            f"{count} steps; expected at most {MOST_PROFILED}: each is megabytes per worker",
            param_hint="--torch-profiler",
        )


def _arrange(
    graph: Graph, plan_file: Path | None, without: tuple[str, ...]
) -> dict[str, Any] | None:
    """Gives the graph what the plan says, or leaves parts out; the plan's prediction, if it holds.

    A prediction is of the graph as planned, so it is none of a run without one of its parts.
    """
    if plan_file is None and not without:
        return None
    from flowengine.plan import PARTS, apply_plan, leave_out, read_plan

    if plan_file is not None:
        plan = read_plan(plan_file)
        apply_plan(plan, graph)
    leave_out(graph, [part for part in PARTS if part in without])
    return asdict(plan.predicted) if plan_file is not None and not without else None


@contextmanager
def _telling_replay(target: str, settings: tuple[str, ...], run_dir: Path) -> Iterator[None]:
    """An error about samples is followed by the command that runs them again."""
    try:
        yield
    except FlowError as error:
        command = replay_command(error, target, settings, run_dir)
        if command is not None:
            error.add_note(f"run these samples alone, in a debugger:\n  {command}")
        raise


def _checkpoint(resume: str, name: str) -> Path:
    """The checkpoint that --resume means, which stderr is told."""
    from flowengine.checkpoint import find_checkpoint, find_run

    path = find_checkpoint(find_run(Path("runs"), name) if resume == NEWEST else Path(resume))
    click.echo(f"resuming {path}", err=True)
    return path
