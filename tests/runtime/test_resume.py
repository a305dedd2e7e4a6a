"""A resumed run goes on as if it had never stopped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import small_graph
from running import Ran, run_graph

from flowengine import Graph, check
from flowengine.api import Context, Operator, Sample
from flowengine.checkpoint import find_checkpoint, open_checkpoint
from flowengine.errors import CheckpointError, GraphError
from flowengine.graph import Stream
from flowengine.runtime import Runtime


class TokensSeen(Operator):
    """Counts tokens over the whole training, and remembers the first of each step."""

    def open(self, context: Context) -> None:
        self._report = context.report
        self._tokens = 0
        self._firsts = torch.empty(0, dtype=torch.int64)
        self._first: int | None = None

    def process(self, sample: Sample) -> None:
        self._tokens += len(sample.tokens)
        if self._first is None:
            self._first = int(sample.tokens[-1])

    def flush(self) -> None:
        self._firsts = torch.cat([self._firsts, torch.tensor([self._first])])
        self._first = None
        self._report("tokens", [self._tokens, *self._firsts.tolist()])

    def state(self) -> Mapping[str, Any]:
        return {"tokens": self._tokens, "firsts": self._firsts}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._tokens, self._firsts = state["tokens"], state["firsts"]


def keep_graph(*, every: int = 3, keep_last: int = 9, steps: int = 8, **settings: Any) -> Graph:
    graph = small_graph(steps=steps, **settings)
    graph.checkpoint(every=every, keep_last=keep_last)
    return graph


def resume(graph: Graph, from_: Path, to: Path, *, runtime: Runtime = "inline") -> Ran:
    return run_graph(graph, to, runtime=runtime, resume=from_)


def checkpoints(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def assert_equal_weights(one: Ran, other: Ran) -> None:
    assert one.weights.keys() == other.weights.keys()
    for stage, weights in one.weights.items():
        assert all(torch.equal(weights[name], other.weights[stage][name]) for name in weights)


@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"staleness": 2},
        {"replicas": 2, "model_replicas": 2},
        {"clip_norm": None, "activations": "recompute"},
        {"freeze": True},
        {"dtype": "float64", "evaluate": 4},
        {"steps": None, "total": 60},
    ],
    ids=str,
)
def test_resumed_training_is_the_same_to_the_bit(setting: dict[str, Any], tmp_path: Path) -> None:
    """Losses behind the checkpoint and the final weights are the uninterrupted run's."""
    whole = run_graph(keep_graph(**setting), tmp_path / "whole")
    for step in (3, 6):
        path = tmp_path / "whole" / "checkpoints" / f"step-{step:08d}"
        again = resume(keep_graph(**setting), path, tmp_path / str(step))
        assert again.losses == whole.losses[step:]
        assert [s.step for s in again.steps] == [s.step for s in whole.steps[step:]]
        assert_equal_weights(again, whole)
        assert [r.value for r in again.reports] == [r.value for r in whole.reports]


@pytest.mark.slow
@pytest.mark.parametrize("order", [("inline", "local"), ("local", "inline"), ("local", "local")])
def test_runtimes_resume_each_other(order: tuple[Runtime, Runtime], tmp_path: Path) -> None:
    """A checkpoint does not say which runtime made it."""
    first, second = order
    whole = run_graph(keep_graph(steps=8), tmp_path / "whole")
    run_graph(keep_graph(steps=5), tmp_path / "first", runtime=first)
    again = resume(keep_graph(steps=8), tmp_path / "first", tmp_path / "again", runtime=second)
    assert again.losses == whole.losses[5:]
    assert_equal_weights(again, whole)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (2, 1)])
def test_replicas_may_change(before: int, after: int, tmp_path: Path) -> None:
    """Another number of replicas sums in another order, and is otherwise the same."""
    whole = run_graph(keep_graph(dtype="float64", replicas=before), tmp_path / "whole")
    again = resume(
        keep_graph(dtype="float64", replicas=after),
        tmp_path / "whole" / "checkpoints" / "step-00000003",
        tmp_path / "again",
    )
    assert again.losses == pytest.approx(whole.losses[3:], rel=1e-10, abs=0)


def test_operators_keep_their_state(tmp_path: Path) -> None:
    """What `state` gave comes back, tensors as tensors, before the first value."""

    def graph() -> Graph:
        graph = keep_graph()
        graph.add(TokensSeen(), Stream(graph, "source"))
        return graph

    whole = run_graph(graph(), tmp_path / "whole")
    again = resume(
        graph(), tmp_path / "whole" / "checkpoints" / "step-00000003", tmp_path / "again"
    )
    assert len(whole.reports) == 8
    assert [r.value for r in again.reports] == [r.value for r in whole.reports[3:]]


def test_the_newest_are_kept(tmp_path: Path) -> None:
    """Older checkpoints go; the last step's is among those that stay."""
    run_graph(keep_graph(every=2, keep_last=2, steps=7), tmp_path)
    assert checkpoints(tmp_path) == ["step-00000006", "step-00000007"]
    assert find_checkpoint(tmp_path).name == "step-00000007"


def test_a_half_written_checkpoint_is_none(tmp_path: Path) -> None:
    """What a crash left unfinished is not taken for a checkpoint, and the one before it is."""
    run_graph(keep_graph(), tmp_path)
    newest = find_checkpoint(tmp_path)
    newest.rename(newest.with_name(f".{newest.name}.partial"))
    assert find_checkpoint(tmp_path).name == "step-00000006"


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    """Damage to the tensors is named, wherever in the file it is."""
    run_graph(keep_graph(steps=3), tmp_path / "run")
    path = find_checkpoint(tmp_path / "run") / "encoder.safetensors"
    whole = path.read_bytes()
    for place in (9, len(whole) // 3, len(whole) - 1):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(Exception, match=r"stage 'encoder' .*: .*encoder"):
            resume(keep_graph(steps=4), tmp_path / "run", tmp_path / str(place))


@pytest.mark.parametrize(
    ("setting", "difference"),
    [
        ({"staleness": 1}, r"\n  staleness: 0, now 1"),
        ({"samples": 6}, r"\n  step samples: 8, now 6"),
        ({"max_tokens": 40}, r"\n  stages.packer.operator: .CostPacker\(max_tokens=32, .*, now .C"),
        ({"freeze": True}, r"\n  stages.encoder.freeze: False, now True"),
        ({"seed": 3}, r"\n  seed: 0, now 3"),
    ],
    ids=str,
)
def test_another_graph_is_refused(setting: dict[str, Any], difference: str, tmp_path: Path) -> None:
    """Every difference that changes what is computed is named, with both values."""
    run_graph(keep_graph(steps=3), tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"is a checkpoint of another graph") as refusal:
        resume(keep_graph(steps=4, **setting), tmp_path / "run", tmp_path / "again")
    assert refusal.match(difference)


@pytest.mark.parametrize("evaluate", [0, 4])
def test_nothing_left_to_train(evaluate: int, tmp_path: Path) -> None:
    """A run that ended right behind its last checkpoint can be resumed, and writes its weights."""
    whole = run_graph(keep_graph(steps=3, evaluate=evaluate), tmp_path / "run")
    again = resume(keep_graph(steps=3, evaluate=evaluate), tmp_path / "run", tmp_path / "again")
    assert again.losses == []
    assert_equal_weights(again, whole)
    assert [r.value for r in again.reports] == [r.value for r in whole.reports]


def test_fewer_steps_than_the_checkpoint(tmp_path: Path) -> None:
    """A checkpoint behind the run's last step says how to go on."""
    run_graph(keep_graph(steps=3), tmp_path / "run")
    with pytest.raises(
        CheckpointError, match=r"is behind step 3, and the run has 2; pass a larger"
    ):
        resume(keep_graph(steps=2), tmp_path / "run", tmp_path / "again")


def test_no_checkpoint(tmp_path: Path) -> None:
    """A directory without checkpoints is named, with what makes them."""
    run_graph(small_graph(steps=1), tmp_path)
    with pytest.raises(CheckpointError, match=r"holds no checkpoint; .*graph.checkpoint\(every="):
        find_checkpoint(tmp_path)


def test_the_manifest_tells_the_run(tmp_path: Path) -> None:
    """Steps, losses so far, parts, and what the bits depend on."""
    ran = run_graph(keep_graph(steps=5), tmp_path)
    manifest = open_checkpoint(find_checkpoint(tmp_path))
    assert (manifest.graph, manifest.step, manifest.losses) == ("small", 5, ran.losses)
    assert manifest.parts == ["encoder", "model"]
    assert manifest.machine["torch"] == torch.__version__


@pytest.mark.parametrize(("every", "keep_last"), [(-1, 2), (2, 0)])
def test_settings_are_checked(every: int, keep_last: int) -> None:
    """Numbers that make no sense are refused with their line."""
    with pytest.raises(
        GraphError, match=r"checkpoint \(test_resume.py:\d+\): .* is (-1|0); expect"
    ):
        check(keep_graph(every=every, keep_last=keep_last))
