"""The protocol under whatever schedule and faults a seed makes; and that mistakes would show."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from flowengine.graph import check
from flowengine.testing.simulator import MISTAKES, Mistake, Simulation, explore, fail, find, shrink
from flowengine.testing.simulator.choices import Choices
from flowengine.testing.simulator.graphs import topology_of
from flowengine.testing.simulator.main import main
from flowengine.testing.simulator.settings import NUM_SETTINGS, setting

BLOCK = 60


@pytest.mark.parametrize("block", range(10))
def test_the_protocol_keeps_to_its_rules(block: int) -> None:
    """Whatever the schedule, the deaths, torn writes, poison and interrupts: no invariant breaks,
    and once the faults have stopped the run comes to its end."""
    found = explore(range(block * BLOCK, (block + 1) * BLOCK))
    assert not found.failed
    assert found.events > 100 * BLOCK
    assert found.faults > BLOCK / 2


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_planted_mistakes_are_found(mistake: Mistake) -> None:
    """A protocol with a mistake in it fails within a few hundred seeds."""
    found = find(mistake, range(500))
    assert len(found.failed) == 1, f"not found in {found.seeds} seeds"


def test_there_are_enough_mistakes() -> None:
    """They are many, each with a name of its own, and leave the protocol as it was."""
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES) >= 12
    for mistake in MISTAKES:
        right = mistake.of.__dict__[mistake.attribute]
        with mistake.planted():
            assert mistake.of.__dict__[mistake.attribute] is not right
        assert mistake.of.__dict__[mistake.attribute] is right


def test_graphs_are_such_as_a_user_may_write() -> None:
    """The simulated graphs pass the checks, but for the pool that holds a pack of them and no more
    than they need."""
    for index in range(0, NUM_SETTINGS, 7):
        graph = topology_of(setting(index)).graph
        graph.joins[0] = type(graph.joins[0])(
            inputs=graph.joins[0].inputs, capacity=2**30, line=graph.joins[0].line
        )
        check(graph)
    topology_of.cache_clear()


def test_a_seed_repeats() -> None:
    """The same seed gives the same run, event by event; so do the choices that it made."""
    traces: list[list[str]] = []
    choices = Choices(5)
    for drawn in (choices, Choices(5), choices):
        trace: list[str] = []
        again = Choices(given=choices.taken) if drawn is choices and traces else drawn
        Simulation(again, trace=trace.append).run()
        traces.append(trace)
    assert traces[0] == traces[1] == traces[2]
    assert any("FAULT" in line for line in traces[0])


@pytest.mark.slow
def test_a_failure_is_shrunk_and_told() -> None:
    """What fails is told in fewer events than it had, with its seed; told again, it is the same."""
    mistake = next(m for m in MISTAKES if m.name == "a credit is lost")
    with mistake.planted():
        seed = next(iter(explore(range(500), stop_at_failure=True).failed))
        failure = fail(Choices(seed))
        assert failure is not None
        shortest = shrink(failure, tries=150)
        assert len(shortest.trace) < len(failure.trace) / 2
        again = fail(Choices(given=shortest.choices))
        assert again == shortest
    told = CliRunner().invoke(main, ["--seed", str(seed), "--mistake", mistake.name])
    assert told.exit_code == 1
    assert f"seed {seed} fails after {len(failure.trace)} events" in told.output
    assert "has not returned 1 credits" in told.output
    assert CliRunner().invoke(main, ["--seed", str(seed)]).output == f"seed {seed} is well\n"
