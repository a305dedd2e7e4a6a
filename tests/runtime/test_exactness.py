"""The graph computes what the plain loop computes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import small_graph
from reference import Trained, train_plainly
from running import Ran, run_graph
from torch import Tensor

TOLERANCE = {"float64": 1e-10, "float32": 1e-5}


def largest_difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest difference of two sets of weights, relative to the largest weight of a tensor."""
    assert one.keys() == other.keys()
    return max(float((one[n] - other[n]).abs().max() / other[n].abs().max()) for n in one)


def assert_same(ran: Ran, plain: Trained, *, tolerance: float) -> None:
    assert ran.losses == pytest.approx(plain.losses, rel=tolerance, abs=0)
    for stage, weights in plain.weights.items():
        assert largest_difference(ran.weights[stage], weights) <= tolerance, stage


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"max_tokens": 24},
        {"max_tokens": 200},
        {"min_packs": 8},
        {"activations": "recompute"},
        {"replicas": 2},
        {"replicas": 2, "activations": "recompute", "max_tokens": 20},
        {"replicas": 3, "model_replicas": 2},
        {"clip_norm": None},
        {"window": 1},
        {"freeze": True},
    ],
    ids=str,
)
def test_inline_trains_as_the_plain_loop(
    setting: dict[str, Any], dtype: str, tmp_path: Path
) -> None:
    """Losses of 20 steps and the final weights agree with the plain loop, however it is packed."""
    graph = small_graph(steps=20, dtype=dtype, **setting)
    assert_same(run_graph(graph, tmp_path), train_plainly(graph), tolerance=TOLERANCE[dtype])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    "setting",
    [{}, {"replicas": 2}, {"activations": "recompute", "max_tokens": 20}],
    ids=str,
)
def test_local_trains_as_the_plain_loop(
    setting: dict[str, Any], dtype: str, tmp_path: Path
) -> None:
    """The same over processes."""
    graph = small_graph(steps=20, dtype=dtype, **setting)
    ran = run_graph(graph, tmp_path, runtime="local")
    assert_same(ran, train_plainly(graph), tolerance=TOLERANCE[dtype])


def test_any_packing_trains_the_same_objective(tmp_path: Path) -> None:
    """One backward over everything, and packs of any size, give the same losses in fp64."""
    plain = train_plainly(small_graph(dtype="float64"), one_backward=True)
    for index, max_tokens in enumerate((15, 40, 400)):
        graph = small_graph(dtype="float64", max_tokens=max_tokens)
        assert_same(run_graph(graph, tmp_path / str(index)), plain, tolerance=1e-10)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("activations", ["stash", "recompute"])
def test_one_sample_per_pack_is_bitwise_the_plain_loop(
    activations: str, dtype: str, tmp_path: Path
) -> None:
    """With one replica and one sample per pack the same kernels run on the same shapes, so that
    losses and weights are equal to the bit."""
    graph = small_graph(samples=4, min_packs=4, activations=activations, dtype=dtype)
    ran, plain = run_graph(graph, tmp_path), train_plainly(graph)
    assert {step.packs for step in ran.steps} == {4}
    assert ran.losses == plain.losses
    for stage, weights in plain.weights.items():
        for name, weight in weights.items():
            assert torch.equal(ran.weights[stage][name], weight), (stage, name)


@pytest.mark.slow
@pytest.mark.parametrize("setting", [{}, {"replicas": 2}, {"staleness": 2}], ids=str)
def test_two_runs_are_equal_to_the_bit(setting: dict[str, Any], tmp_path: Path) -> None:
    """Runs with one seed give the same bits, on either runtime, whatever the timing."""
    graph = small_graph(steps=6, **setting)
    runs = [
        run_graph(graph, tmp_path / str(index), runtime=runtime)  # type: ignore[arg-type]
        for index, runtime in enumerate(["inline", "local", "local"])
    ]
    for other in runs[1:]:
        assert other.losses == runs[0].losses
        for stage, weights in runs[0].weights.items():
            for name, weight in weights.items():
                assert torch.equal(other.weights[stage][name], weight), (stage, name)


def test_the_loss_is_not_a_mean_of_means(tmp_path: Path) -> None:
    """The step's loss weighs every target alike: averaging the packs' means gives another one."""
    graph = small_graph(steps=1, dtype="float64")
    ran = run_graph(graph, tmp_path)
    assert ran.losses == pytest.approx(train_plainly(graph, one_backward=True).losses, rel=1e-12)
    assert ran.steps[0].packs > 1
