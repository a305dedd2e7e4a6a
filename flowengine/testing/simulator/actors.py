"""Those whom the schedule of a simulated run chooses from; each goes on by one event."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from flowengine.channel import Kind, Message
from flowengine.errors import WorkerLostError
from flowengine.runtime.stage import Stage
from flowengine.runtime.topology import COORDINATOR
from flowengine.testing.simulator.disk import NumberWriter

if TYPE_CHECKING:
    from flowengine.testing.simulator.world import Incarnation


class Actor:
    """Something that the schedule may choose. place: among those who can go on, -1 if it cannot."""

    __slots__ = ("place", "slow")

    def __init__(self) -> None:
        self.place = -1
        self.slow = False

    def act(self) -> None:
        """Goes on by one event."""
        raise NotImplementedError


class LinkActor(Actor):
    """The messages of `sender` that `to` has not had yet."""

    __slots__ = ("_most", "_world", "mail", "sender", "to")

    def __init__(self, world: Incarnation, sender: int, to: int) -> None:
        super().__init__()
        self._world = world
        self.sender, self.to = sender, to
        self.mail: deque[tuple[int, Message]] = deque()
        self._most = (99, 1, 99, 2)[world.choices.below(4)]
        self.slow = world.choices.below(8) == 7

    def act(self) -> None:
        world, mail = self._world, self.mail
        for _ in range(min(self._most, len(mail))):
            world.deliver(self, *mail.popleft())
        if not mail:
            world.stop(self)


class WorkerActor(Actor):
    """A stage replica."""

    __slots__ = ("_world", "died_at_work", "index", "is_dead", "stage")

    def __init__(self, world: Incarnation, stage: Stage) -> None:
        super().__init__()
        self._world = world
        self.stage = stage
        self.index = stage.site.worker.index
        self.slow = world.choices.below(8) == 7
        self.is_dead = self.died_at_work = False

    def act(self) -> None:
        stage, world = self.stage, self._world
        before = stage.current
        world.tick(world, "")
        if self.is_dead:
            return
        moved = stage.advance()
        if stage.current != before:
            world.watch.on_close(stage.site, stage.current)
        if not moved:
            world.stop(self)


class WriterActor(Actor):
    """A stage's checkpoint writer."""

    __slots__ = ("_worker", "_world", "_writer")

    def __init__(self, world: Incarnation, writer: NumberWriter, worker: int) -> None:
        super().__init__()
        self._world = world
        self._writer = writer
        self._worker = worker

    def act(self) -> None:
        world = self._world
        world.tick(world, "")
        if not world.workers[self._worker].is_dead:
            self._writer.write_on()
        if not self._writer.is_writing or world.workers[self._worker].is_dead:
            world.stop(self)
            world.go(world.publishing)


class PublisherActor(Actor):
    """The supervisor's look at what is on the disk."""

    __slots__ = ("_world",)

    def __init__(self, world: Incarnation) -> None:
        super().__init__()
        self._world = world

    def act(self) -> None:
        self._world.stop(self)
        self._world.publish()


class DeathActor(Actor):
    """The supervisor's notice of a death."""

    __slots__ = ("_worker", "_world")

    def __init__(self, world: Incarnation, worker: WorkerActor) -> None:
        super().__init__()
        self._world = world
        self._worker = worker

    def act(self) -> None:
        world, worker = self._world, self._worker
        link = world.links.get((worker.index, COORDINATOR))
        while link is not None and link.mail:
            world.deliver(link, *link.mail.popleft())
        world.publish()
        label = worker.stage.site.worker.label
        raise WorkerLostError(
            f"'{label}'",
            worker=label,
            samples=world.in_hand[worker.index],
            at_work=worker.died_at_work,
        )


def describe_message(message: Message) -> str:
    """What it says, without the values that it carries."""
    kind, *fields = message
    if kind == Kind.ROWS:
        rows = [f"sample {row[1]}" if row[3] >= 0 else f"pack {row[2]}" for row in fields[1]]
        return f"rows on channel {fields[0]}, round {fields[1][0][0]}: {', '.join(rows)}"
    if kind == Kind.NOTICE:
        said = "" if fields[0] in ("catalogue", "packs") else f" {fields[1:]}"
        return f"{fields[0]}{said}"
    if kind in (Kind.RELEASE, Kind.GRADIENT):
        leases = ", ".join(f"{count} of {address:#x}" for address, count in fields[0])
        return f"{Kind(kind).name.lower()} {leases}"
    return f"{Kind(kind).name.lower()} on channel {fields[0]} {fields[1:]}"
