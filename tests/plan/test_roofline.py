"""Analytical costs: FLOPs that can be counted by hand, and directions that must hold."""

from __future__ import annotations

import pytest

from flowengine.api import TransformerShape
from flowengine.errors import PlanError
from flowengine.operators.audio import AudioEncoder
from flowengine.operators.language import LanguageModel
from flowengine.operators.vision import VisionEncoder
from flowengine.plan import Load, Parallel, StageCosts, find_device, parse_fleet
from flowengine.plan.roofline import LINEAR, roofline_costs

QWEN3_32B = TransformerShape(
    layers=64,
    width=5120,
    heads=64,
    head_width=128,
    kv_heads=8,
    hidden=25600,
    gated=True,
    causal=True,
    vocabulary=151936,
)
EIGHTFOLD = Parallel(8, 8, 1)
PACK = Load(4, 8192.0, 4 * 2048.0**2)


def costs(
    shape: TransformerShape = QWEN3_32B,
    *,
    parallel: Parallel = EIGHTFOLD,
    trains: bool = True,
    returns: bool = False,
    devices: str = "64xH100",
) -> StageCosts:
    return roofline_costs(
        shape,
        modality="",
        trains=trains,
        returns=returns,
        parallel=parallel,
        fleet=parse_fleet(devices),
        largest=PACK,
        mean=PACK,
    )


def test_weights_of_a_known_model() -> None:
    """Qwen3-32B has 32.8 billion weights, by its model card."""
    assert QWEN3_32B.num_weights == pytest.approx(32.8e9, rel=0.01)


def test_training_flops_are_six_per_weight_and_token_and_the_scores() -> None:
    """6 N T for all matrices but the embedding, and 6 * layers * heads * head width per pair."""
    weights = QWEN3_32B.num_weights - QWEN3_32B.vocabulary * QWEN3_32B.width
    scores = 6 * 64 * 64 * 128 * PACK.squares
    assert costs().flops.seconds(PACK) == pytest.approx(6 * weights * PACK.rows + scores)


def test_frozen_encoders_have_no_backward() -> None:
    """Neither gradients of weights nor of inputs are computed, and no optimizer is kept."""
    frozen, trained = costs(trains=False), costs()
    assert not frozen.learns
    assert frozen.update_s == 0
    assert frozen.memory.total < trained.memory.total / 3


def test_a_frozen_objective_returns_gradients_for_less() -> None:
    """Behind a trained encoder, a frozen model's backward leaves out its weights' gradients."""
    returned, trained = costs(trains=False, returns=True), costs()
    assert 0 < returned.backward.row < trained.backward.row


def test_tensor_parallelism_is_faster_and_not_for_free() -> None:
    """Eight devices are faster than one, by less than eight."""
    one, eight = costs(parallel=Parallel(8)), costs(parallel=Parallel(8, 8))
    gain = one.pack_s(PACK) / eight.pack_s(PACK)
    assert 4 < gain < 8


def test_recompute_trades_time_for_memory() -> None:
    """A forward more, for a fraction of the activations."""
    kept, again = costs(), costs(parallel=Parallel(8, 8, 1, recompute=True))
    assert again.pack_s(PACK) == pytest.approx(kept.pack_s(PACK) + kept.forward.seconds(PACK))
    assert again.memory.activations < kept.memory.activations
    assert again.flops == kept.flops


def test_no_faster_than_the_peak() -> None:
    """What a pack takes is more than its FLOPs at the assumed share of the data sheet's peak."""
    each = costs()
    least = each.flops.seconds(PACK) / (8 * LINEAR * find_device("h100").bf16)
    assert each.pack_s(PACK) > least


@pytest.mark.parametrize(
    "operator", [VisionEncoder(), AudioEncoder(), LanguageModel(vocabulary=50)]
)
def test_shapes_of_the_library_count_its_weights(operator: VisionEncoder) -> None:
    """An operator's shape has the matrices that its module has. Norms and biases are left out; a
    convolution before a stride of 2 counts twice, as its work does."""
    built = sum(p.numel() for p in operator.build().parameters() if p.ndim > 1)
    assert operator.shape().num_weights == pytest.approx(built, rel=0.05)


def test_unknown_devices_are_refused() -> None:
    """With the nearest name, or the form that was expected."""
    with pytest.raises(PlanError, match="did you mean H20"):
        parse_fleet("8xH210")
    with pytest.raises(PlanError, match="expected COUNTxDEVICE"):
        parse_fleet("H200")
