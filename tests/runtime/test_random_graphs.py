"""Any graph: the checks refuse it, or it runs to its end within its bounds."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from fakes_random import random_graph

from flowengine import Graph, check
from flowengine.channel import Kind, Message
from flowengine.errors import GraphError, StageError
from flowengine.runtime.events import Event, RunDone
from flowengine.runtime.inline import InlineRun
from flowengine.runtime.local import LocalRun

BLOCK = 20
MOST_ROW_BYTES = 400
TOO_LARGE = (
    r"(?P<rows>\d+) rows of (?P<bytes>\d+) bytes go to '.*' at once, its channel holds "
    r"(?P<most_rows>\d+) rows and (?P<most_bytes>\d+) bytes",
    r"pack \d+ has (?P<bytes>\d+) bytes of rows, the channel to '.*' holds (?P<most_bytes>\d+)",
    r"pack \d+ has (?P<rows>\d+) rows, the channel to '.*' holds (?P<most_rows>\d+);",
    r"a payload of (?P<bytes>\d+) bytes exceeds this worker's share of the pool, "
    r"(?P<most_bytes>\d+) bytes",
)


class Bounded(InlineRun):
    """Looks at all bounds with every message."""

    def _post(self, sender: int, to: int, message: Message) -> None:
        super()._post(sender, to, message)
        if message[0] != Kind.ROWS:
            return
        pools = [stage.pool for stage in self._stages]
        for edge in self._stages[sender].site.edges:
            for outlet in edge.outlets:
                assert 0 <= outlet.items <= outlet.bound_items
                assert 0 <= outlet.num_bytes <= outlet.bound_bytes
        assert all(pool.used_bytes <= pool.limit for pool in pools)
        for join in self._topology.graph.joins:
            assert sum(pool.used_bytes for pool in pools) <= join.capacity


def outcome(graph: Graph, run_dir: Path) -> str:
    """What becomes of a graph: refused, done, or a value that is larger than its bound."""
    try:
        check(graph)
    except GraphError:
        return "refused"
    told: list[Event] = []
    run = Bounded(graph, run_dir=run_dir, observe=told.append)
    try:
        run.run()
    except StageError as error:
        if not is_too_large(str(error), samples=graph.step.samples):
            raise
        return "too large"
    assert isinstance(told[-1], RunDone)
    assert told[-1].status.pool.used_bytes == 0
    for stage in run._stages:
        assert all(level == (0, 0) for level in stage.levels())
    return "done"


def is_too_large(text: str, *, samples: int) -> bool:
    """Whether the text names a value and a bound, and the value is the larger; of rows that come
    one by one, whether a pack of so many samples can be."""
    stuck = re.search(r"has more rows than the channel to '.*' holds, (\d+) rows and (\d+) b", text)
    if stuck:
        return int(stuck[1]) < samples or int(stuck[2]) < samples * MOST_ROW_BYTES
    for pattern in TOO_LARGE:
        found = re.search(pattern, text)
        if found:
            given = {name: int(value) for name, value in found.groupdict().items()}
            return any(
                given[f"most_{name}"] < given.get(name, 0)
                for name in ("rows", "bytes")
                if f"most_{name}" in given
            )
    return False


@pytest.mark.parametrize("block", range(12))
def test_a_graph_is_refused_or_runs_to_its_end(block: int, tmp_path: Path) -> None:
    """Whatever its shape, replicas, credits, capacity, windows, staleness and feedback: no stall,
    no bound exceeded, and all credits and spans are back at the end. Only a value that is larger
    than a bound, which no check can know, ends a run, by name."""
    found = Counter(
        outcome(random_graph(seed), tmp_path / str(seed))
        for seed in range(BLOCK * block, BLOCK * (block + 1))
    )
    assert found["done"] >= 2, found
    assert set(found) <= {"refused", "done", "too large"}


def test_every_outcome_occurs(tmp_path: Path) -> None:
    """The random graphs are neither all well nor all wrong."""
    found = Counter(outcome(random_graph(seed), tmp_path / str(seed)) for seed in range(500, 520))
    assert set(found) == {"refused", "done", "too large"}


@pytest.mark.slow
@pytest.mark.parametrize("nth", range(2))
def test_the_same_over_processes(nth: int, tmp_path: Path) -> None:
    """A graph that runs to its end in one process does so in many."""
    seeds = (s for s in range(1000, 2000) if random_graph(s).name == "training")
    done = (s for s in seeds if outcome(random_graph(s), tmp_path / str(s)) == "done")
    seed = next(islice(done, nth, None))
    told: list[Event] = []
    graph = random_graph(seed)
    LocalRun(graph, run_dir=tmp_path, observe=told.append, stall_s=20).run()
    assert isinstance(told[-1], RunDone)
    assert told[-1].status.pool.used_bytes == 0
