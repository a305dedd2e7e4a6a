"""What must hold between any two events of a simulated run, counted beside the code itself.

Invariants.
- Credits: what is out on a channel is what its outlet has spent, never above the bound, never below
  0; a consumer returns no credit of rows that it still holds, and all of a round's when it closes.
- Leases: a span is freed when all leases ever granted on it are returned, not before; nobody reads
  or writes what is freed; at the end all spans are free.
- Bytes reserved by a worker never exceed its share of the pool.
- Weights are stepped once per step, in order, with the gradient of every sample of that step that
  is no dead letter, once each, and with no other; the norm is that of all stages.
- Features of step s were made by version max(0, s - staleness), for the pack that reads them.
- The ledger tells of every step once, in order, with the loss of all of its samples; a checkpoint's
  parts and losses are those of one history; a resumed run goes on exactly there.
- No message of an earlier incarnation is handled.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from flowengine.api import Encoder
from flowengine.channel import Inlet, Kind, Message, Outlet, payloads_of
from flowengine.checkpoint import Manifest, Part
from flowengine.pool import owner_of
from flowengine.runtime.events import StepDone
from flowengine.runtime.round import Round
from flowengine.runtime.site import Site
from flowengine.runtime.start import Start
from flowengine.runtime.topology import Topology, WorkerSpec
from flowengine.testing.simulator.graphs import (
    HELD_OUT,
    MODALITIES,
    is_too_long,
    media_rows,
    num_targets,
)
from flowengine.testing.simulator.settings import Setting


class BrokenError(AssertionError):
    """Something that must never happen."""


def breaks(text: str) -> NoReturn:
    """Ends the run."""
    raise BrokenError(text)


@dataclass(frozen=True)
class Trained:
    """The gradient of one sample."""

    step: int
    sample: int


@dataclass(frozen=True)
class Made:
    """A pack's features, or their gradient."""

    modality: str
    round: int
    pack: int
    samples: tuple[int, ...]
    version: int
    is_gradient: bool = False


class _Account:
    """Of one channel: rows and bytes out; rows given back, and delivered by round."""

    def __init__(self, bound: tuple[int, int]) -> None:
        self.items, self.size = bound
        self.rows_out = self.bytes_out = 0
        self.delivered = self.returned = self.due = 0
        self.by_round: Counter[int] = Counter()
        self.outlet: Outlet | None = None
        self.inlet: Inlet | None = None


class Watch:
    """Of one incarnation of a run. losses: those told so far. letters: the samples that are
    dead letters from the start, or will be."""

    def __init__(self, given: Setting, topology: Topology, start: Start) -> None:
        self._given = given
        self._topology = topology
        self._accounts = [_Account(_bound(topology, c.consumer)) for c in topology.channels]
        self._granted: Counter[int] = Counter()
        self._returned: Counter[int] = Counter()
        self._updates = [start.step for _ in topology.workers]
        self.losses = list(start.losses)
        self.letters = start.left_out | too_long(given)

    def attach(self, site: Site) -> None:
        """Knows a worker's ends of its channels."""
        for edge in site.edges:
            for outlet in edge.outlets:
                self._accounts[outlet.channel].outlet = outlet
        for inlet in site.inlets:
            self._accounts[inlet.channel].inlet = inlet

    # messages

    def on_post(self, sender: int, message: Message) -> None:
        """A worker has sent a message."""
        kind = message[0]
        if kind == Kind.ROWS:
            self._on_rows(sender, self._accounts[message[1]], message)
        elif kind == Kind.CREDIT:
            account = self._accounts[message[1]]
            account.returned += message[2]
            if account.returned > account.delivered:
                breaks(f"channel {message[1]}: more credits are returned than rows arrived")
        elif kind in (Kind.RELEASE, Kind.GRADIENT):
            for address, count in message[1]:
                self._returned[address] += count

    def _on_rows(self, sender: int, account: _Account, message: Message) -> None:
        _, channel, rows = message
        account.rows_out += len(rows)
        account.bytes_out += sum(row[6] for row in rows)
        if account.rows_out > account.items or account.bytes_out > account.size:
            breaks(
                f"channel {channel} has {account.rows_out} rows of {account.bytes_out} bytes out, "
                f"and a bound of {account.items} rows and {account.size} bytes"
            )
        for row in rows:
            for payload in payloads_of(row[7]):
                if owner_of(payload.span) == sender:
                    self._granted[payload.span] += 1

    def on_handled(self, message: Message) -> None:
        """A worker has taken a message in."""
        kind = message[0]
        if kind == Kind.ROWS:
            account = self._accounts[message[1]]
            account.delivered += len(message[2])
            for row in message[2]:
                account.by_round[row[0]] += 1
            self._check_waiting(account, message[1])
        elif kind == Kind.CREDIT:
            account = self._accounts[message[1]]
            account.rows_out -= message[2]
            account.bytes_out -= message[3]
            self._check_spent(account, message[1])

    def _check_spent(self, account: _Account, channel: int) -> None:
        outlet = account.outlet
        assert outlet is not None
        spent = (account.items - outlet.items, account.size - outlet.num_bytes)
        if spent != (account.rows_out, account.bytes_out):
            breaks(
                f"channel {channel}: (rows, bytes) {(account.rows_out, account.bytes_out)} are "
                f"out, its outlet counts {spent}"
            )

    def _check_waiting(self, account: _Account, channel: int) -> None:
        assert account.inlet is not None
        if account.delivered - account.returned < len(account.inlet.rows):
            breaks(f"channel {channel}: credits were returned of rows that still wait")

    def on_close(self, site: Site, current: int) -> None:
        """A worker has closed all rounds before `current`."""
        for inlet in site.inlets:
            account = self._accounts[inlet.channel]
            for number in [n for n in account.by_round if n < current]:
                account.due += account.by_round.pop(number)
            if account.returned < account.due:
                breaks(
                    f"{site.worker.label} has closed round {current - 1} and has not returned "
                    f"{account.due - account.returned} credits of channel {inlet.channel}"
                )

    # the pool

    def on_reserve(self, worker: int, used: int, limit: int) -> None:
        """A worker has reserved a span, and has so much in all."""
        if used > limit:
            breaks(f"worker {worker} has {used} bytes reserved, its share is {limit}")

    def on_free(self, address: int) -> None:
        """A span has been freed."""
        granted, returned = self._granted.pop(address, 0), self._returned.pop(address, 0)
        if granted != returned:
            breaks(f"{address:#x} is freed with {returned} of its {granted} leases returned")

    def on_look(self, wanted: int, found: int) -> None:
        """A tensor of sample `wanted` was looked at."""
        number = wanted if wanted >= 0 else HELD_OUT - 1 - wanted
        if found != number:
            breaks(f"a tensor of sample {wanted} is one of {found}")

    def on_features(self, made: Any, modality: str, round_: Round, pack: int, sample: int) -> None:
        """The features of a sample were looked at."""
        step = round_.step
        stale = max(0, step - self._given.staleness) if not round_.held_out else step
        frozen = MODALITIES.index(modality) < self._given.frozen
        version = 0 if frozen else stale
        wanted = (modality, round_.number, pack, version, False)
        found = (made.modality, made.round, made.pack, made.version, made.is_gradient)
        if found != wanted or sample not in made.samples:
            breaks(f"the features of sample {sample} are to be {wanted}, and are {made}")

    # steps

    def expected(self, step: int, modality: str | None = None) -> list[int]:
        """The samples of a step that are no dead letters; those with this modality."""
        given = self._given
        stop = min((step + 1) * given.samples, given.num_samples)
        found = [s for s in range(step * given.samples, stop) if s not in self.letters]
        return [s for s in found if modality is None or media_rows(s, modality)]

    def on_update(
        self, worker: WorkerSpec, step: int, gradient: Sequence[Trained], norm: float | None
    ) -> None:
        """A replica steps its weights, with this gradient."""
        label = worker.label
        if step != self._updates[worker.index]:
            breaks(f"{label} steps {step} after {self._updates[worker.index]} steps")
        self._updates[worker.index] += 1
        what = worker.stage.what
        wanted = self.expected(step, what.modality if isinstance(what, Encoder) else None)
        found = sorted(part.sample for part in gradient if part.step == step)
        if found != wanted or len(gradient) != len(wanted):
            breaks(f"{label} steps {step} with the gradients {gradient}, of samples {wanted}")
        if norm is not None and not math.isclose(norm, self._norm(step), rel_tol=1e-5):
            breaks(f"{label} steps {step} with the norm {norm}, and it is {self._norm(step)}")

    def _norm(self, step: int) -> float:
        trained = [stage.what for stage in self._topology.graph.stages if stage.trains]
        modalities = [what.modality if isinstance(what, Encoder) else None for what in trained]
        return math.hypot(*(len(self.expected(step, name)) for name in modalities))

    def on_ledger(self, done: StepDone) -> None:
        """The ledger tells of a step."""
        if done.step != len(self.losses):
            breaks(f"the ledger tells of step {done.step} after {len(self.losses)} steps")
        self.losses.append(done.loss)
        samples = self.expected(done.step)
        if (done.samples, done.loss) != (len(samples), loss_of(samples)):
            breaks(
                f"step {done.step} has {done.samples} samples and the loss {done.loss}; {samples}"
            )

    # the end

    def on_end(self, used: Sequence[int]) -> None:
        """All is done, and all that was sent has arrived; used: bytes reserved by worker."""
        for channel, account in enumerate(self._accounts):
            self._check_spent(account, channel)
            if account.rows_out or account.bytes_out:
                breaks(f"channel {channel} has {account.rows_out} rows out at the end")
        if any(used):
            breaks(f"bytes are still reserved at the end: {used}")


def too_long(given: Setting) -> frozenset[int]:
    """The samples that no pack holds."""
    return frozenset(s for s in range(given.num_samples) if given.samples > 1 and is_too_long(s))


def loss_of(samples: Sequence[int]) -> float:
    """The loss of a step of these samples, as the ledger must have it."""
    return math.fsum(1 + sample for sample in samples) / sum(map(num_targets, samples))


def check_checkpoint(manifest: Manifest, parts: Mapping[str, Part]) -> None:
    """A checkpoint is of one history, and its manifest tells it."""
    histories = {
        name: part.values["history"] for name, part in parts.items() if "history" in part.values
    }
    trained = histories["model"]
    for name, history in histories.items():
        wanted = [
            tuple(s for s in samples if name == "model" or media_rows(s, name))
            for samples in trained
        ]
        if history != wanted or len(history) != manifest.step:
            breaks(f"checkpoint {manifest.step}: '{name}' was trained on {history}, of {wanted}")
    if manifest.losses != [loss_of(samples) for samples in trained]:
        breaks(f"checkpoint {manifest.step} has the losses {manifest.losses}, trained on {trained}")
    keeps = [part.values["total"] for part in parts.values() if "total" in part.values]
    total = sum(sum(samples) for samples in trained)
    if keeps and sum(keeps) != total:
        breaks(f"checkpoint {manifest.step}: the kept totals are {keeps}, and together {total}")
    letters = {letter["sample"] for letter in manifest.dead_letters}
    doubled = [s for samples in trained for s in samples if s in letters]
    if doubled or len(set(sum(trained, ()))) != sum(map(len, trained)):
        breaks(f"checkpoint {manifest.step}: {doubled} are dead letters and trained, of {trained}")


def _bound(topology: Topology, consumer: int) -> tuple[int, int]:
    credits = topology.workers[consumer].stage.credits
    return credits.items, credits.num_bytes
