"""The discrete-event clock: order, sharing of cores, what is written down."""

from __future__ import annotations

import pytest

from flowengine.plan.clock import END, Actor, Clock, Job, Wait


class Worker(Actor):
    """Does jobs of these lengths, one after the other."""

    def __init__(self, name: str, *seconds: float) -> None:
        super().__init__(name, 0)
        self.left = list(seconds)
        self.ended: list[float] = []
        self.clock: Clock

    def next(self) -> Job | Wait:
        if not self.left:
            return END
        return Job("work", 0, -1, self.left.pop(0), lambda: self.ended.append(self.clock.now))


def run(*workers: Worker, cores: int | None = None, slowdown: tuple[float, ...] = (1.0,)) -> Clock:
    clock = Clock(workers, cores=cores, slowdown=slowdown)
    for worker in workers:
        worker.clock = clock
    clock.run()
    return clock


def test_devices_of_their_own_do_not_share() -> None:
    """Without cores, everybody works at full speed."""
    one, other = Worker("one", 1.0, 2.0), Worker("other", 2.5)
    assert run(one, other).now == pytest.approx(3.0)
    assert one.ended == pytest.approx([1.0, 3.0])
    assert other.ended == pytest.approx([2.5])


def test_running_jobs_share_cores_evenly() -> None:
    """Three jobs of one second on two cores take a second and a half."""
    workers = [Worker(str(index), 1.0) for index in range(3)]
    assert run(*workers, cores=2).now == pytest.approx(1.5)


def test_a_job_speeds_up_when_another_ends() -> None:
    """On one core, jobs of 1 and 2 seconds end at 2 and 3 seconds."""
    one, other = Worker("one", 1.0), Worker("other", 2.0)
    run(one, other, cores=1)
    assert one.ended == pytest.approx([2.0])
    assert other.ended == pytest.approx([3.0])


def test_jobs_side_by_side_slow_each_other_down() -> None:
    """A slowdown for two holds while two run, and no longer."""
    one, other = Worker("one", 1.0), Worker("other", 2.0)
    run(one, other, cores=2, slowdown=(1.0, 1.25))
    assert one.ended == pytest.approx([1.25])
    assert other.ended == pytest.approx([2.25])


def test_stretches_tell_what_was_done() -> None:
    """Every job is written down once, with its time."""
    clock = run(Worker("one", 1.0, 0.5))
    assert [(s.state, s.began, s.ended) for s in clock.stretches] == [
        ("busy", 0.0, 1.0),
        ("busy", 1.0, 1.5),
    ]
