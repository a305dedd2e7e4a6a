"""On a cluster a graph computes what it computes in one process, and outlives actors and nodes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import small_graph
from running import run_graph
from test_exactness import TOLERANCE

from flowengine import Graph, check
from flowengine.runtime.events import Event, Status, StepDone

ray: Any = pytest.importorskip("ray", reason="needs flowengine[ray]")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(300),
]

SOON = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
}
"""A node that is gone is noticed in seconds."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes on this machine; each has room for a whole graph."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 8, "include_dashboard": False, "object_store_memory": 10**8}
    made = Cluster(initialize_head=True, head_node_args={**node, "_system_config": SOON})
    made.other = made.add_node(num_cpus=8, object_store_memory=10**8)
    path = os.environ.get("PYTHONPATH", "")
    ray.init(
        address=made.address,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": f"{Path(__file__).parents[1]}:{path}"}},
    )
    yield made
    ray.shutdown()
    made.shutdown()


def strike_at(step: int, act: Callable[[], object]) -> Callable[[Event], None]:
    """Acts once, when the step is done."""
    struck: list[int] = []

    def strike(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == step and not struck:
            struck.append(step)
            act()

    return strike


def kept() -> Graph:
    """Long enough that what is struck in its midst is struck before its end."""
    graph = small_graph(steps=150)
    graph.checkpoint(every=10)
    return graph


def test_two_nodes_compute_what_one_process_does(cluster: Any, tmp_path: Path) -> None:
    """With replicas and an evaluation, losses and answers are equal to the bit; the stages are on
    both nodes."""
    from flowengine.runtime.cluster.run import RayRun

    inline = run_graph(small_graph(replicas=2, evaluate=4), tmp_path / "inline")
    ran = run_graph(small_graph(replicas=2, evaluate=4), tmp_path / "ray", runtime="ray")
    assert ran.losses == inline.losses
    assert [report.value for report in ran.reports] == [r.value for r in inline.reports]
    graph = small_graph()
    check(graph)
    run = RayRun(graph, run_dir=tmp_path / "again", observe=lambda _: None)
    run.run()
    assert len(set(run.nodes.values())) == 2
    assert len(cluster.list_all_nodes()) == 2


@pytest.mark.usefixtures("cluster")
def test_a_gang_of_actors_trains_as_one_process(tmp_path: Path) -> None:
    """Ranks find each other over the nodes; losses agree in fp64."""
    setting: dict[str, Any] = {"dtype": "float64", "steps": 3}
    ran = run_graph(small_graph(model_gang=2, **setting), tmp_path / "ray", runtime="ray")
    plain = run_graph(small_graph(**setting), tmp_path / "inline")
    assert ran.losses == pytest.approx(plain.losses, rel=TOLERANCE["float64"], abs=0)


@pytest.mark.usefixtures("cluster")
def test_a_killed_actor_costs_time_and_no_sample(tmp_path: Path) -> None:
    """The run goes back to the last checkpoint, once, and says whose death it was."""
    pids: dict[str, int] = {}
    strike = strike_at(20, lambda: os.kill(pids["encoder"], signal.SIGKILL))

    def observe(event: Event) -> None:
        if isinstance(event, Status):
            pids.update({stage.stage: stage.pid for stage in event.stages})
        strike(event)

    ran = run_graph(kept(), tmp_path / "ray", runtime="ray", max_restarts=1, observe=observe)
    assert len(ran.restarts) == 1
    assert "stage 'encoder'" in ran.restarts[0].reason
    assert ran.losses == run_graph(kept(), tmp_path / "inline").losses


def test_a_removed_node_costs_time_and_no_sample(cluster: Any, tmp_path: Path) -> None:
    """The stages that were on it come up on another, behind the last checkpoint."""
    strike = strike_at(20, lambda: cluster.remove_node(cluster.other, allow_graceful=False))
    ran = run_graph(kept(), tmp_path / "ray", runtime="ray", max_restarts=3, observe=strike)
    assert ran.restarts
    assert ran.losses == run_graph(kept(), tmp_path / "inline").losses
