"""A stage: an operator at work, as a state machine without I/O.

Rules.
- A runtime delivers messages with `handle` and calls `advance` again and again. `advance` does one
  piece of work and says True; or says False, and `waits` says for what.
- A stage never blocks: what cannot be sent yet stays in `pending`, and nothing else is begun.
- A stage that is held up for room or credits tells a packer of what is ready that it feeds, and
  when it no longer is.
- Every round that opens on the inlets opens on the outlets before its first row, and closes there
  when all inlets have closed it and all of its rows are dealt with.
- Told to finish, the source begins no further round, and the stages that keep something make a
  checkpoint of where that ends. The end of the stream says so too, so no stage is at its end
  before it knows.
- The ranks of a gang do together what is a collective, as their muster says, and end together.
- When its inlets have ended and its rounds are over, a stage ends its outlets and returns the
  leases of what its operator keeps; it is done when all leases on its own spans have come back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from flowengine.api import Context
from flowengine.api.context import Reported
from flowengine.channel import Kind, Message
from flowengine.errors import RunError
from flowengine.pool import Holdings, Payload, Span, inline_tensor, owner_of
from flowengine.runtime.emission import Emission
from flowengine.runtime.round import Round
from flowengine.runtime.site import Site
from flowengine.runtime.spans import Work

if TYPE_CHECKING:
    from torch import Tensor

OTHER_RANKS = "the other ranks of its gang"


@dataclass(frozen=True)
class Wait:
    """Why a stage does nothing: no input (starved), or no room or go-ahead (blocked)."""

    state: Literal["starved", "blocked", "done"]
    on: str


class Stage(ABC):
    """Base of the stages; one subclass per kind of operator."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.spec = site.worker.stage
        self.pool: Holdings = site.pool
        self.muster = site.muster
        self.pool.on_free = self._on_free
        self.waits = Wait("starved", "its start")
        self.in_hand: tuple[int, ...] = ()
        self.work_now: Work | None = None
        self.done = False
        self._said_end = False
        self.rounds: dict[int, Round] = {}
        self.current = site.start.round
        self.finishing = False
        self.pending: Emission | None = None
        self._inlets = {inlet.channel: inlet for inlet in site.inlets}
        self._outlets = {o.channel: o for edge in site.edges for o in edge.outlets}
        self._freed: dict[str, list[Any]] = defaultdict(list)
        self._packers = site.ready_packers()
        self._is_held_up = self._said_held_up = False

    def open(self) -> None:
        """Called once, before the first message."""

    def close(self) -> None:
        """Called once at the end, also after an error."""

    @abstractmethod
    def work(self) -> bool:
        """One piece of work; False with `waits` set if there is none."""

    def advance(self) -> bool:
        """One piece of work, of whatever kind; False if there is none now."""
        if self.done:
            return False
        self._is_held_up = False
        moved = self._send_pending() if self.pending is not None else self.work()
        self._tell_packers()
        if not moved and self._has_ended():
            moved = self._finish()
        self.return_leases()
        return moved

    def handle(self, sender: int, message: Message) -> None:
        """Takes in one message."""
        kind, *fields = message
        if kind == Kind.ROWS:
            self._inlets[fields[0]].on_rows(fields[1])
        elif kind == Kind.CREDIT:
            self._outlets[fields[0]].on_credit(fields[1], fields[2])
        elif kind == Kind.OPEN:
            self._on_open(Round.from_fields(fields[1]))
        elif kind == Kind.CLOSE:
            self._inlets[fields[0]].closed = fields[1]
        elif kind == Kind.END:
            self._inlets[fields[0]].ended = True
            self.finishing = self.finishing or fields[1]
        elif kind == Kind.RELEASE:
            for address, count in fields[0]:
                self.pool.release(address, count)
        elif kind == Kind.GRADIENT:
            for address, count in fields[0]:
                self.on_gradient(address, count)
        elif kind == Kind.GANG:
            self.muster.on_message(sender, fields)
        else:
            assert kind == Kind.NOTICE, f"unknown message {kind} from worker {sender}"
            if fields[0] == "finish":
                self.finishing = True
            else:
                self.on_notice(fields[0], fields[1:])

    def on_gradient(self, address: int, count: int) -> None:
        """A consumer wrote the gradient into the span and returned its leases."""
        raise AssertionError(f"{self.spec.name}: no gradient was expected at {address:#x} {count}")

    def on_notice(self, subject: str, fields: list[Any]) -> None:
        """The coordinator answered."""
        raise AssertionError(f"{self.spec.name}: no notice '{subject}' was expected {fields}")

    # what subclasses use

    def context(self) -> Context:
        """What the stage's operator learns; its reports say after how many steps they came."""

        def report(name: str, value: Reported) -> None:
            round_ = self.rounds.get(self.current)
            done = 0 if round_ is None else round_.step + (not round_.held_out)
            self.site.notify("report", self.site.worker.index, done, name, value)

        return self.site.context(report)

    def emit(self, emission: Emission) -> bool:
        """Sends now, or as soon as there is room; always True: it is work done."""
        self.pending = emission
        self._send_pending()
        return True

    def take_in_hand(self, samples: tuple[int, ...], work: Work | None = None) -> None:
        """Says which samples the work that begins now is about, in case it never ends; and what
        work it is, for the record."""
        self.in_hand, self.work_now = samples, work
        self.site.on_hand(samples)
        if work is not None:
            self.site.on_work(work)

    def wait(self, state: Literal["starved", "blocked"], on: str) -> bool:
        """Says what is waited for; False."""
        self.waits = Wait(state, on)
        return False

    def hold_up(self, on: str) -> bool:
        """Says that it is blocked for room or credits, which others must give back; False."""
        self._is_held_up = True
        return self.wait("blocked", on)

    def open_round(self, round_: Round) -> None:
        """Opens a round on all outlets."""
        for outlet in self._outlets.values():
            outlet.open(round_.to_fields())

    def close_round(self) -> bool:
        """Closes the current round on all outlets and goes on to the next; True."""
        for outlet in self._outlets.values():
            outlet.close(self.current)
        self.rounds.pop(self.current, None)
        self.current += 1
        self._send_freed()
        return True

    def is_closed(self) -> bool:
        """Whether all inlets have closed the current round: no row of it will come."""
        return all(inlet.closed >= self.current for inlet in self.site.inlets)

    def load(self, payload: Payload) -> Tensor:
        """The payload's tensor; its lease is returned when the tensor dies."""
        if payload.data is not None:
            return inline_tensor(payload)
        return self.pool.leased_view(payload)

    def load_media(self, tree: Payload | tuple[Payload, ...] | None) -> list[Tensor]:
        """The tensors of a sample's media, of which there may be none, one or several."""
        parts = () if tree is None else (tree,) if isinstance(tree, Payload) else tree
        return [self.load(payload) for payload in parts]

    def return_leases(self) -> None:
        """Returns the leases whose views have died since the last call."""
        if self.pool.dropped:
            self.give_up(self.pool.take_dropped().items(), Kind.RELEASE)

    def levels(self) -> tuple[tuple[int, int], ...]:
        """Rows and bytes on each outgoing channel now, in the order of the channels."""
        return tuple(
            (outlet.bound_items - outlet.items, outlet.bound_bytes - outlet.num_bytes)
            for _, outlet in sorted(self._outlets.items())
        )

    def give_up(self, leases: Iterable[tuple[int, int]], kind: Kind) -> None:
        """Returns leases (span, count) to their owners, as released or as gradients."""
        by_owner: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for address, count in leases:
            by_owner[owner_of(address)].append((address, count))
        for owner, theirs in sorted(by_owner.items()):
            self.site.post(owner, (kind, [list(lease) for lease in sorted(theirs)]))

    # ends

    def _on_open(self, round_: Round) -> None:
        if round_.number not in self.rounds and round_.number >= self.current:
            self.rounds[round_.number] = round_
            self.open_round(round_)

    def _send_pending(self) -> bool:
        assert self.pending is not None
        blocked_by = self.pending.try_send(self.pool, self.site.clock())
        if blocked_by is None:
            self.pending = None
            return True
        return self.hold_up(blocked_by)

    def _tell_packers(self) -> None:
        if self._is_held_up != self._said_held_up:
            self._said_held_up = self._is_held_up
            told = (Kind.NOTICE, "held_up", self.site.worker.index, self._is_held_up)
            for worker in self._packers:
                self.site.post(worker, told)

    def _has_ended(self) -> bool:
        ended = all(inlet.ended for inlet in self.site.inlets) and self.pending is None
        return ended and not self.rounds and not any(inlet.rows for inlet in self.site.inlets)

    def _finish(self) -> bool:
        if not self._said_end:
            self._said_end = True
            for outlet in self._outlets.values():
                outlet.end(early=self.finishing)
            self.give_up(self.pool.recall().items(), Kind.RELEASE)
            return True
        if self.pool.num_spans:
            return self.wait("blocked", "its payloads still on lease")
        self._send_freed()
        order = self.muster.agree(["end"], filled=self.finishing)
        if order is None:
            return self.wait("blocked", OTHER_RANKS)
        self.finishing = order.filled[0]
        self.site.notify("done", self.site.worker.index, self.end())
        self.done, self.waits = True, Wait("done", "")
        return True

    def end(self) -> str:
        """What remains to be done after the last round; the weights file, if any."""
        return ""

    def _on_free(self, span: Span) -> None:
        for entry in span.entries:
            entry["returned_s"] = self.site.clock()
            for name, value in entry.items():
                self._freed[name].append(value)

    def _send_freed(self) -> None:
        if self._freed:
            self.site.notify("catalogue", dict(self._freed))
            self._freed.clear()

    def fail_row(self, text: str) -> RunError:
        """An error that names this stage and its line."""
        return RunError(f"{self.spec}: {text}")
