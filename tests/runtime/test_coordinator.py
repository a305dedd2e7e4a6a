"""The ledger of steps: who is answered when, and what observers are told."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fakes import small_graph

from flowengine.channel import Kind, Message
from flowengine.errors import RunError
from flowengine.runtime.coordinator import Coordinator
from flowengine.runtime.events import CatalogueRows, Event, Reported, StepDone
from flowengine.runtime.topology import Topology


class Desk:
    """A coordinator, what it posted and what it told."""

    def __init__(self, **setting: Any) -> None:
        self.posted: list[tuple[int, Message]] = []
        self.told: list[Event] = []
        self.topology = Topology(small_graph(**setting))
        self.coordinator = Coordinator(
            self.topology,
            post=lambda worker, message: self.posted.append((worker, message)),
            observe=self.told.append,
            clock=lambda: 1.5,
        )

    def say(self, subject: str, *fields: Any) -> None:
        self.coordinator.handle((Kind.NOTICE, subject, *fields))

    def answers(self) -> list[tuple[int, str]]:
        """To whom which subject was posted."""
        return [(worker, message[1]) for worker, message in self.posted]


def notices(step: int, *, losses: dict[int, float]) -> list[tuple[Any, ...]]:
    """All that is said in a step of two encoder replicas and two models."""
    entries = [[k, loss, 20 if k == 0 else 0] for k, loss in losses.items()]
    by_replica = [[entry for entry in entries if entry[0] % 2 == r] for r in (0, 1)]
    return [
        ("plan", step, 8, 100, 20, len(losses), 0.75),
        ("losses", step, 0, by_replica[0]),
        ("losses", step, 1, by_replica[1]),
        ("encoded", step, "encoder", 0),
        ("encoded", step, "encoder", min(step, 1)),
        ("norms", step, "encoder", [3.0]),
        ("norms", step, "model", [4.0]),
        ("stepped", step, "encoder", 0.1),
        ("stepped", step, "model", 0.2),
    ]


def test_a_step_is_told_once_all_of_it_is_known() -> None:
    """In whatever order a step's notices come, observers hear of it once, with the last."""
    said = notices(0, losses={0: 1.0, 1: 2.0, 2: 4.0})
    for seed in range(50):
        desk = Desk(replicas=2, model_replicas=2)
        order = random.Random(seed).sample(said, len(said))
        order.sort(key=lambda notice: notice[0] == "stepped")  # it answers the last of the norms
        for number, notice in enumerate(order):
            assert desk.told == [], order[:number]
            desk.say(*notice)
        assert desk.told == [
            StepDone(
                step=0,
                wall_s=1.5,
                loss=7.0 / 20,
                samples=8,
                tokens=100,
                targets=20,
                packs=3,
                fill=0.75,
                gradient_norm=5.0,
                staleness={"encoder": 0},
                lr={"encoder": 0.1, "model": 0.2},
            )
        ]


def test_steps_are_told_in_order() -> None:
    """A step that is complete before an earlier one waits for it."""
    desk = Desk(replicas=2, model_replicas=2, staleness=1)
    early, late = notices(1, losses={0: 1.0}), notices(0, losses={0: 1.0})
    for notice in [*early, *late[:-1]]:
        desk.say(*notice)
    assert desk.told == []
    desk.say(*late[-1])
    steps = [event for event in desk.told if isinstance(event, StepDone)]
    assert [step.step for step in steps] == [0, 1]
    assert [step.staleness["encoder"] for step in steps] == [0, 1]


def test_the_loss_does_not_depend_on_who_trained_what() -> None:
    """A step's loss is the exactly rounded sum of its packs' losses, whichever replica had them."""
    values = [0.1, 1e16, -1e16, 0.2, 0.3, 7e-9]
    found = set()
    for order in itertools.islice(itertools.permutations(range(6)), 0, 720, 37):
        desk = Desk(model_replicas=2)
        cut = order[0]
        for replica, packs in enumerate((order[:cut], order[cut:])):
            desk.say("losses", 0, replica, [[k, values[k], 20 if k == 0 else 0] for k in packs])
        for notice in notices(0, losses=dict.fromkeys(range(6), 0.0)):
            if notice[0] != "losses" and notice != ("encoded", 0, "encoder", 0):
                desk.say(*notice)
        desk.say("encoded", 0, "encoder", 0)
        (step,) = [event for event in desk.told if isinstance(event, StepDone)]
        found.add(step.loss)
    assert found == {math.fsum(values) / 20}


@pytest.mark.parametrize("replicas", [2, 7])
def test_sums_wait_for_every_replica(replicas: int) -> None:
    """No replica adds up gradients before all have offered theirs; then all do, in one order,
    which is told in runs of replicas that offered alike."""
    desk = Desk(replicas=replicas)
    order = list(range(replicas))[::-1]
    for number, replica in enumerate(order):
        assert desk.posted == [], number
        desk.say("reduce", 0, "encoder", replica, [True, replica == 0])
    in_order = [[[True, True], 1], [[True, False], replicas - 1]]
    workers = desk.topology.replicas_of("encoder")
    assert desk.posted == [
        (worker.index, (Kind.NOTICE, "reduce", 0, in_order)) for worker in workers
    ]


def test_nobody_steps_before_the_norm_is_known() -> None:
    """The norm over all stages goes to every replica once the norms of all stages are in."""
    desk = Desk(replicas=2, model_replicas=2)
    desk.say("norms", 0, "model", [4.0])
    assert desk.posted == []
    desk.say("norms", 0, "encoder", [3.0])
    assert desk.posted == [(i, (Kind.NOTICE, "commit", 0, 5.0)) for i in (1, 2, 4, 5)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_norm_is_torchs(dtype: str) -> None:
    """The norm of all stages is that of their norms, in the graph's dtype, in the graph's order."""
    desk = Desk(dtype=dtype)
    values = torch.rand(20, dtype=getattr(torch, dtype), generator=torch.Generator().manual_seed(3))
    desk.say("norms", 0, "model", values[9:].tolist())
    desk.say("norms", 0, "encoder", values[:9].tolist())
    assert desk.posted[0][1][3] == float(torch.linalg.vector_norm(values))


def test_a_frozen_encoder_owes_nothing() -> None:
    """With a frozen encoder a step needs the model's notices alone."""
    desk = Desk(freeze=True)
    desk.say("norms", 0, "model", [4.0])
    assert desk.answers() == [(3, "commit")]
    desk.say("plan", 0, 8, 100, 20, 1, 0.75)
    desk.say("losses", 0, 0, [[0, 2.0, 20]])
    assert desk.told == []
    desk.say("stepped", 0, "model", 0.2)
    (step,) = desk.told
    assert isinstance(step, StepDone)
    assert (step.loss, step.gradient_norm, step.staleness) == (0.1, 4.0, {})


def test_a_lost_pack_is_caught() -> None:
    """Fewer losses than the plan has packs are a mistake of the engine, never a smaller loss."""
    desk = Desk(freeze=True)
    desk.say("plan", 0, 8, 100, 20, 2, 0.75)
    desk.say("losses", 0, 0, [[0, 2.0, 20]])
    with pytest.raises(AssertionError, match="step 0: 1 losses for 2 packs"):
        desk.say("stepped", 0, "model", 0.2)


@pytest.mark.parametrize(
    ("notice", "event"),
    [
        (("report", 3, 6, "name", {"a": 1}), Reported("model", 6, 1.5, "name", {"a": 1})),
        (("catalogue", {"sample": [1, 2]}), CatalogueRows({"sample": [1, 2]})),
    ],
    ids=["report", "catalogue"],
)
def test_reports_are_passed_on(notice: tuple[Any, ...], event: Event) -> None:
    """What an operator reports and what the catalogue lost reach the observer at once."""
    desk = Desk()
    desk.say(*notice)
    assert desk.told == [event]


def test_the_run_is_done_when_everyone_is() -> None:
    """Every worker must be done; the weights are those that the first replicas wrote."""
    desk = Desk(replicas=2)
    files: Callable[[int], str] = {1: "weights/encoder", 4: "weights/model"}.get  # type: ignore[assignment]
    for worker in (4, 2, 0, 1):
        desk.say("done", worker, files(worker) or "")
        assert not desk.coordinator.is_done
    desk.say("done", 3, "")
    assert desk.coordinator.is_done
    assert desk.coordinator.weights == {"encoder": "weights/encoder", "model": "weights/model"}


def test_changed_labels_are_caught() -> None:
    """Targets that are not those of the source's lengths would normalise the loss wrongly."""
    desk = Desk(freeze=True)
    desk.say("plan", 0, 8, 100, 20, 1, 0.75)
    desk.say("losses", 0, 0, [[0, 2.0, 19]])
    with pytest.raises(RunError, match="the packs hold 19 target tokens, the source's lengths"):
        desk.say("stepped", 0, "model", 0.2)
