"""One finished run and one that failed, for all tests that read run directories."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import small_graph

from flowengine import launch
from flowengine.errors import RunError


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a small run with an evaluation and two encoder replicas."""
    run_dir = tmp_path_factory.mktemp("runs") / "finished"
    launch.run(small_graph(steps=6, evaluate=8, replicas=2), runtime="inline", run_dir=run_dir)
    return run_dir


@pytest.fixture(scope="session")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that ended before its first step was done."""
    run_dir = tmp_path_factory.mktemp("runs") / "failed"
    graph = small_graph(capacity="16 MiB", max_tokens=8)
    with pytest.raises(RunError, match="max_tokens"):
        launch.run(graph, runtime="inline", run_dir=run_dir)
    return run_dir
