"""The command line of the simulator."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import groupby

import click

from flowengine.testing.simulator import MISTAKES, Failure, explore, fail, shrink
from flowengine.testing.simulator.choices import Choices


@click.command()
@click.option("--seed", type=int, help="Simulate this seed alone, and tell what happens.")
@click.option("--seeds", type=int, default=1000, show_default=True, help="Simulate so many.")
@click.option("--first", type=int, default=0, show_default=True, help="The first of them.")
@click.option(
    "--mistake",
    type=click.Choice([mistake.name for mistake in MISTAKES]),
    help="With this mistake in the protocol.",
)
def main(seed: int | None, seeds: int, first: int, mistake: str | None) -> None:
    """Drives the protocol through seeded schedules and faults; exit code 1 if a run fails."""
    planted = next((m.planted() for m in MISTAKES if m.name == mistake), nullcontext())
    with planted:
        if seed is None:
            found = explore(range(first, first + seeds), stop_at_failure=True)
            click.echo(
                f"{found.seeds} seeds, {found.events} events, {found.faults} faults, "
                f"{len(found.failed)} failing; {1000 * found.seconds / found.seeds:.1f} ms a seed"
            )
            seed = next(iter(found.failed), None)
            if seed is None:
                return
        failure = fail(Choices(seed))
        if failure is None:
            click.echo(f"seed {seed} is well")
            return
        _tell(seed, failure, shrink(failure))
    raise SystemExit(1)


def _tell(seed: int, failure: Failure, shortest: Failure) -> None:
    click.echo(f"\nseed {seed} fails after {len(failure.trace)} events: {failure.error}")
    click.echo(f"the shortest run found that fails, {len(shortest.trace)} events:\n")
    for event, times in ((event, len(list(same))) for event, same in groupby(shortest.trace)):
        click.echo(f"  {event}{f' ({times} times)' if times > 1 else ''}")
    click.echo(f"\n{shortest.error}")
    click.echo(f"once more: python -m flowengine.testing.simulator --seed {seed}")
