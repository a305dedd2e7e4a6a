"""Simulated graphs: times that can be worked out by hand, and what must never differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flowengine.errors import PlanError
from flowengine.plan import (
    Deployed,
    Deployment,
    Line,
    Load,
    PackWork,
    Parallel,
    StageCosts,
    StepWork,
)
from flowengine.plan.flow import Flow

ENCODE, RETURN, TRAIN = 2.0, 1.0, 3.0


def steps(count: int, packs: int, *, rows: float = 10.0) -> list[StepWork]:
    load = Load(1, rows, rows * rows)
    return [StepWork([PackWork({"image": load, "": load}, [0], 10)] * packs)] * count


def encoder(*, replicas: int = 1, learns: bool = True, **more: Any) -> Deployed:
    backward = Line(constant=RETURN) if learns else Line()
    costs = StageCosts("image", Line(constant=ENCODE), backward)
    return Deployed("encoder", Parallel(replicas), costs, **more)


def model(*, replicas: int = 1, parts: int = 1) -> Deployed:
    costs = StageCosts(
        "", Line(constant=TRAIN / 3 / parts), Line(constant=TRAIN * 2 / 3 / parts), parts=parts
    )
    return Deployed("model", Parallel(replicas, 1, parts), costs)


def run(deployment: Deployment, work: list[StepWork]) -> Flow:
    flow = Flow(deployment, work)
    flow.run()
    return flow


def test_a_frozen_encoder_is_hidden() -> None:
    """With a faster frozen encoder, steps take what the objective takes."""
    flow = run(Deployment((encoder(learns=False),), model()), steps(3, 4))
    assert flow.ends[0] == pytest.approx(ENCODE + 4 * TRAIN)
    assert flow.ends[2] - flow.ends[1] == pytest.approx(4 * TRAIN)


def test_lock_step_adds_up() -> None:
    """With one pack in flight everything happens one after the other."""
    deployment = Deployment((encoder(),), model(), handover="pack")
    flow = run(deployment, steps(2, 3))
    assert flow.ends[1] == pytest.approx(2 * 3 * (ENCODE + TRAIN + RETURN))


def test_window_of_one_is_lock_step() -> None:
    """A stage's own window does the same for a trained encoder."""
    flow = run(Deployment((encoder(window=1),), model()), steps(2, 3))
    assert flow.ends[1] == pytest.approx(2 * 3 * (ENCODE + TRAIN + RETURN))


def test_hand_over_by_steps_alternates() -> None:
    """When a step is handed over as a whole, encoder and objective take turns."""
    deployment = Deployment((encoder(learns=False),), model(), handover="step")
    flow = run(deployment, steps(3, 4))
    assert flow.ends[2] == pytest.approx(3 * 4 * (ENCODE + TRAIN))


def test_staleness_hides_a_trained_encoder() -> None:
    """At staleness 0 the next step's first features wait for the optimizer; at 1 they do not, and
    two replicas of the encoder are hidden."""
    alone = Deployment((encoder(replicas=2),), model(), together=False)
    exact, stale = run(alone, steps(4, 6)), run(replace(alone, staleness=1), steps(4, 6))
    assert exact.ends[3] - exact.ends[2] > 6 * TRAIN + 0.5
    assert stale.ends[2] - stale.ends[1] == pytest.approx(6 * TRAIN)


def test_pipeline_takes_as_long_as_the_formula() -> None:
    """m equal packs through p parts take (m + p - 1) slots (Narayanan et al. 2021)."""
    deployment = Deployment((), model(parts=4), together=False)
    flow = run(deployment, steps(2, 8))
    assert flow.ends[0] == pytest.approx((8 + 4 - 1) * TRAIN / 4)
    assert flow.ends[1] == pytest.approx(2 * flow.ends[0])


@pytest.mark.parametrize("replicas", [1, 2, 7])
def test_every_pack_is_trained_once(replicas: int) -> None:
    """Whatever the replicas, each pack is encoded, trained and taken back once, in order."""
    deployment = Deployment((encoder(replicas=replicas),), model(replicas=2))
    flow = run(deployment, steps(3, 5))
    for what in ("forward", "backward", "train"):
        done = [(s.step, s.pack) for s in flow.clock.stretches if s.what == what]
        assert sorted(done) == [(step, pack) for step in range(3) for pack in range(5)]


def test_equal_inputs_give_equal_times() -> None:
    """Two simulations of the same work say the same, to the bit."""
    deployment = Deployment((encoder(replicas=3),), model(replicas=2), cores=2)
    one, other = run(deployment, steps(3, 5)), run(deployment, steps(3, 5))
    assert one.clock.stretches == other.clock.stretches


def test_a_full_pool_holds_up_the_encoder() -> None:
    """With room for one pack, the encoder runs no further ahead than it must."""
    frozen = encoder(learns=False, share_bytes=15.0, row_bytes=1)
    flow = run(Deployment((frozen,), model()), steps(2, 4))
    causes = {s.what for s in flow.clock.stretches if s.state == "blocked"}
    assert "room in the pool" in causes


def test_a_pack_larger_than_a_share_is_refused() -> None:
    """As in a run, with what to do about it."""
    small = encoder(share_bytes=5.0, row_bytes=1)
    with pytest.raises(PlanError, match="raise capacity="):
        run(Deployment((small,), model()), steps(1, 1))


def test_colocated_encoders_add_to_the_objective() -> None:
    """In one layout for all, a pack takes the sum of all work."""
    deployment = Deployment((encoder(),), model(), colocated=True)
    flow = run(deployment, steps(2, 3))
    assert flow.ends[1] == pytest.approx(2 * 3 * (ENCODE + RETURN + TRAIN))


def test_text_passes_an_encoder_without_work() -> None:
    """A pack without the modality costs its encoder nothing and holds up nobody."""
    load = Load(1, 10.0, 100.0)
    text = StepWork([PackWork({"image": Load(), "": load}, [0], 10)] * 2)
    flow = run(Deployment((encoder(),), model()), [text] * 2)
    assert flow.ends[1] == pytest.approx(4 * TRAIN)


def test_cores_bound_the_sum_of_work() -> None:
    """On one core nothing overlaps."""
    deployment = replace(Deployment((encoder(),), model()), cores=1)
    flow = run(deployment, steps(2, 3))
    assert flow.ends[1] == pytest.approx(2 * 3 * (ENCODE + TRAIN + RETURN))
