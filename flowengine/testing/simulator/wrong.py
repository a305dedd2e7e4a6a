"""Wrong functions for mistakes.py: each takes the right one and gives its replacement."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from flowengine.channel import Inlet, Outlet
from flowengine.checkpoint import Publisher
from flowengine.pool import Allocator, Holdings
from flowengine.runtime.coordinator import Coordinator
from flowengine.runtime.emission import Emission
from flowengine.runtime.encoder_stage import EncoderStage
from flowengine.runtime.objective_stage import ObjectiveStage
from flowengine.runtime.planned_packer import PlannedPacker
from flowengine.runtime.recovery import Recovery
from flowengine.runtime.stage import Stage
from flowengine.runtime.start import Start
from flowengine.testing.simulator.run import Simulation


def loses_a_credit(right: Any) -> Any:
    return lambda inlet, rows: right(inlet, rows[1:] if len(rows) > 2 else rows)


def returns_credits_on_arrival(right: Any) -> Any:
    def on_rows(inlet: Inlet, rows: Any) -> None:
        right(inlet, rows)
        inlet.give_back(list(inlet.rows)[-len(rows) :])

    return on_rows


def spends_no_bytes(right: Any) -> Any:
    def send(outlet: Outlet, rows: Any) -> None:
        right(outlet, rows)
        outlet.num_bytes = outlet.bound_bytes

    return send


def leaves_the_bytes_out(_: Any) -> Any:
    return lambda outlet, items, _size: items <= outlet.items + 1


def grants_one_lease(right: Any) -> Any:
    def send(emission: Emission, pool: Holdings, now: float) -> None:
        right(emission, pool, now)
        if emission.span is not None:
            emission.span.leases = 1

    return send


def frees_with_the_first_lease(right: Any) -> Any:
    def release(pool: Holdings, address: int, _count: int = 1) -> bool:
        return bool(right(pool, address, pool._spans[address].leases))

    return release


def returns_leases_twice(right: Any) -> Any:
    def give_up(stage: Stage, leases: Any, kind: Any) -> None:
        found = list(leases)
        right(stage, found, kind)
        right(stage, found[1:], kind)

    return give_up


def forgets_dropped_leases(right: Any) -> Any:
    def return_leases(stage: Stage) -> None:
        if len(stage.pool.dropped) > 1:
            stage.pool.dropped.pop()
        right(stage)

    return return_leases


def merges_with_what_is_taken(_: Any) -> Any:
    def free(allocator: Allocator, offset: int) -> None:
        size = allocator._taken.pop(offset)
        allocator.used -= size
        if offset + size in allocator._taken:
            size += allocator._taken[offset + size]
        allocator._add(offset, size)

    return free


def one_closed_inlet_is_enough(_: Any) -> Any:
    return lambda stage: any(inlet.closed >= stage.current for inlet in stage.site.inlets)


def ends_before_leases_are_back(_: Any) -> Any:
    def finish(stage: Stage) -> bool:
        for outlet in stage._outlets.values():
            outlet.end(early=stage.finishing)
        stage.site.notify("done", stage.site.worker.index, stage.end())
        stage.done = True
        return True

    return finish


def sleeps_after_a_message(right: Any) -> Any:
    def send_pending(stage: Stage) -> bool:
        right(stage)
        return False

    return send_pending


def steps_with_packs_in_flight(_: Any) -> Any:
    def step_is_over(stage: EncoderStage) -> bool:
        if not stage._open_steps or stage.trainer.is_finishing:
            return False
        return stage._open_steps[0] == stage.trainer.version

    return step_is_over


def makes_no_room_while_blocked(right: Any) -> Any:
    return lambda stage: [] if stage._encoded is not None else right(stage)


def takes_the_first_gradient_for_all(_: Any) -> Any:
    def on_gradient(stage: EncoderStage, *_: int) -> None:
        flight = stage._flights[0]
        assert flight.span is not None
        flight.span.leases = 0
        flight.returned = True
        stage._unreturned -= 1

    return on_gradient


def encodes_with_the_newest(_: Any) -> Any:
    return lambda end, step, **_: min(step, end.version) if end.trains else 0


def joins_without_the_last_feature(right: Any) -> Any:
    def assemble(stage: PlannedPacker, round_: Any) -> Any:
        ports = stage.ports
        stage.ports = ports[-1:]
        try:
            return right(stage, round_)
        finally:
            stage.ports = ports

    return assemble


def trains_before_the_step_is_done(right: Any) -> Any:
    def work(stage: ObjectiveStage) -> bool:
        finishing, stage.trainer._finishing = stage.trainer._finishing, None
        try:
            return bool(right(stage))
        finally:
            if stage.trainer._finishing is None:
                stage.trainer._finishing = finishing

    return work


def adds_before_all_have_offered(right: Any) -> Any:
    def on_reduce(coordinator: Coordinator, step: int, stage: str, *rest: Any) -> None:
        offers = coordinator._steps[step].offers[stage]
        right(coordinator, step, stage, *rest)
        workers = coordinator._topology.replicas_of(stage)
        if len(offers) == len(workers) - 1:
            for missing in range(len(workers)):
                if missing not in offers:
                    right(coordinator, step, stage, missing, [False])

    return on_reduce


def commits_without_the_last_norm(right: Any) -> Any:
    def on_norms(coordinator: Coordinator, *fields: Any) -> None:
        trained = coordinator._trained
        coordinator._trained = trained[:-1] if len(trained) > 1 else trained
        try:
            right(coordinator, *fields)
        except KeyError:
            pass
        finally:
            coordinator._trained = trained

    return on_norms


def tells_a_step_without_all_losses(_: Any) -> Any:
    return lambda _self, state: state.plan is not None and bool(state.losses)


def publishes_with_one_part(right: Any) -> Any:
    def poll(publisher: Publisher) -> Any:
        parts, publisher._parts = publisher._parts, publisher._parts[:1]
        try:
            return right(publisher)
        finally:
            publisher._parts = parts

    return poll


def publishes_before_the_ledger_knows(right: Any) -> Any:
    def poll(publisher: Publisher) -> Any:
        losses = publisher._losses
        publisher._losses = lambda: [*losses(), 0.0]
        try:
            return right(publisher)
        finally:
            publisher._losses = losses

    return poll


def keeps_what_was_half_written(_: Any) -> Any:
    return lambda _self: None


def goes_on_a_round_too_late(right: Any) -> Any:
    def newest(simulation: Simulation) -> Start | None:
        start = right(simulation)
        return None if start is None else replace(start, round=start.round + 1)

    return newest


def goes_back_to_the_beginning(right: Any) -> Any:
    def newest(simulation: Simulation) -> Start | None:
        start = right(simulation)
        return None if start is None else replace(start, step=0, round=0, checkpoint=None)

    return newest


def forgets_dead_letters(right: Any) -> Any:
    def restart(recovery: Recovery, lost: Any) -> Start:
        return replace(cast(Start, right(recovery, lost)), dead_letters=())

    return restart


def blames_at_the_first_death(right: Any) -> Any:
    def judge(recovery: Recovery, lost: Any, start: Start) -> Start:
        recovery._deaths[lost.worker, lost.samples] += 1
        return cast(Start, right(recovery, lost, start))

    return judge


def leaves_links_open(right: Any) -> Any:
    def begin(simulation: Simulation, start: Start) -> Any:
        world = getattr(simulation, "world", None)
        if world is not None:
            left = {key: link.mail for key, link in world.links.items() if link.mail}
            simulation._mail = left if simulation.given == world.given else {}
        return right(simulation, start)

    return begin


def saves_too_early(right: Any) -> Any:
    return lambda saver, step, part: right(saver, step + 1, part)
