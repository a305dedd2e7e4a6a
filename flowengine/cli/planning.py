"""What flowengine plan and simulate share: the devices, the costs and the workload asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from flowengine.cli.target import load, user_code

if TYPE_CHECKING:
    from flowengine.plan import Setting

F = TypeVar("F", bound=Callable[..., Any])

FILE = click.Path(path_type=Path, dir_okay=False)


def takes_costs(command: F) -> F:
    """Adds --profile, --memory, --steps and --json to a command."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="As a JSON object."),
        click.option(
            "--steps",
            type=click.IntRange(min=4),
            default=8,
            show_default=True,
            help="How many of the graph's first steps to simulate; the first 3 warm up.",
        ),
        click.option(
            "--profile", "profile_file", type=FILE, help="Costs as measured, for --devices Nxcpu."
        ),
        click.option("--memory", help="What a device has, e.g. 64GB, where the library differs."),
    ):
        command = option(command)
    return command


def read_setting(
    target: str,
    settings: tuple[str, ...],
    *,
    devices: str,
    profile_file: Path | None,
    memory: str | None,
    steps: int,
) -> Setting:
    """Loads and checks the graph, and reads the lengths of its first samples."""
    graph = load(target, settings)
    from flowengine.graph import check
    from flowengine.graph.size import parse_bytes
    from flowengine.plan import make_setting
    from flowengine.plan.profile import read_profile

    profile = read_profile(profile_file) if profile_file is not None else None
    memory_bytes = parse_bytes(memory) if memory else None
    with user_code(target.partition(":")[0]):
        check(graph)
        return make_setting(graph, devices, steps=steps, profile=profile, memory_bytes=memory_bytes)
