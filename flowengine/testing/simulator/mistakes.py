"""Mistakes to plant in the protocol, each of which the simulator must find.

A mistake replaces one function of the runtimes' own code by one that is wrong, for as long as the
`with` lasts. That they are found is what shows that the simulator would find a real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flowengine.channel import Inlet, Outlet
from flowengine.checkpoint import Publisher
from flowengine.pool import Allocator, Holdings
from flowengine.runtime.coordinator import Coordinator
from flowengine.runtime.emission import Emission
from flowengine.runtime.encoder_stage import EncoderStage
from flowengine.runtime.objective_stage import ObjectiveStage
from flowengine.runtime.planned_packer import PlannedPacker
from flowengine.runtime.recovery import Recovery
from flowengine.runtime.saver import Saver
from flowengine.runtime.stage import Stage
from flowengine.runtime.step_end import StepEnd
from flowengine.testing.simulator import wrong
from flowengine.testing.simulator.disk import NumberFolder
from flowengine.testing.simulator.run import Simulation


@dataclass(frozen=True)
class Mistake:
    """name: what is wrong. made: takes the function `of.attribute`, gives its replacement."""

    name: str
    of: type
    attribute: str
    made: Callable[[Any], Any]

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The protocol with the mistake."""
        right = self.of.__dict__[self.attribute]
        setattr(self.of, self.attribute, self.made(right))
        try:
            yield
        finally:
            setattr(self.of, self.attribute, right)


MISTAKES = (
    Mistake("a credit is lost", Inlet, "give_back", wrong.loses_a_credit),
    Mistake("credits return on arrival", Inlet, "on_rows", wrong.returns_credits_on_arrival),
    Mistake("bytes cost no credit", Outlet, "send", wrong.spends_no_bytes),
    Mistake("one row too many is sent", Outlet, "has_room", wrong.leaves_the_bytes_out),
    Mistake("a span has one lease for all its readers", Emission, "_send", wrong.grants_one_lease),
    Mistake(
        "the first lease frees the span", Holdings, "release", wrong.frees_with_the_first_lease
    ),
    Mistake("leases are returned twice", Stage, "give_up", wrong.returns_leases_twice),
    Mistake("a dropped lease is forgotten", Stage, "return_leases", wrong.forgets_dropped_leases),
    Mistake("free merges with what is taken", Allocator, "free", wrong.merges_with_what_is_taken),
    Mistake(
        "one closed inlet closes a round", Stage, "is_closed", wrong.one_closed_inlet_is_enough
    ),
    Mistake("a stage ends with leases out", Stage, "_finish", wrong.ends_before_leases_are_back),
    Mistake("a stage sleeps with work to do", Stage, "_send_pending", wrong.sleeps_after_a_message),
    Mistake(
        "the encoder steps with packs in flight",
        EncoderStage,
        "_step_is_over",
        wrong.steps_with_packs_in_flight,
    ),
    Mistake(
        "no gradient is taken in while features wait",
        EncoderStage,
        "_able",
        wrong.makes_no_room_while_blocked,
    ),
    Mistake(
        "any gradient is the oldest pack's",
        EncoderStage,
        "on_gradient",
        wrong.takes_the_first_gradient_for_all,
    ),
    Mistake("the newest weights are used", StepEnd, "version_for", wrong.encodes_with_the_newest),
    Mistake(
        "a pack is joined without all features",
        PlannedPacker,
        "_assemble_next",
        wrong.joins_without_the_last_feature,
    ),
    Mistake(
        "training goes on before the step is done",
        ObjectiveStage,
        "work",
        wrong.trains_before_the_step_is_done,
    ),
    Mistake(
        "replicas add before all have offered",
        Coordinator,
        "_on_reduce",
        wrong.adds_before_all_have_offered,
    ),
    Mistake(
        "stages commit without the last norm",
        Coordinator,
        "_on_norms",
        wrong.commits_without_the_last_norm,
    ),
    Mistake(
        "the ledger tells of a step too early",
        Coordinator,
        "_is_known",
        wrong.tells_a_step_without_all_losses,
    ),
    Mistake("one part makes a checkpoint whole", Publisher, "poll", wrong.publishes_with_one_part),
    Mistake(
        "a checkpoint does not wait for the ledger",
        Publisher,
        "poll",
        wrong.publishes_before_the_ledger_knows,
    ),
    Mistake("half-written parts stay", NumberFolder, "sweep", wrong.keeps_what_was_half_written),
    Mistake("a part is saved as the next step's", Saver, "save", wrong.saves_too_early),
    Mistake("a resumed run skips a round", Simulation, "_newest", wrong.goes_on_a_round_too_late),
    Mistake(
        "a resumed run keeps losses and begins anew",
        Simulation,
        "_newest",
        wrong.goes_back_to_the_beginning,
    ),
    Mistake("dead letters are forgotten", Recovery, "restart", wrong.forgets_dead_letters),
    Mistake("a sample is blamed at once", Recovery, "_judge", wrong.blames_at_the_first_death),
    Mistake("links outlive their workers", Simulation, "_begin", wrong.leaves_links_open),
)
"""All of them."""
