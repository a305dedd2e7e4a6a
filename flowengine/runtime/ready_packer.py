"""A packer that makes packs of whatever is encoded.

Rules.
- A sample takes part when all of its features are there. The packer's `stream` says which packs are
  full; which samples share one depends on timing, what is minimised does not.
- All that is ready goes at once when nothing more of the round can come, and while a stage in front
  is held up: its room or credits may be those of samples that wait here, and of no others.

So it cannot deadlock: a stage that is held up says so before it sleeps, and of the samples that it
waits for all that are ready are on their way; one that is not waits for another encoder, which
either works or is held up itself.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from flowengine.api import Lengths, Packer
from flowengine.channel import Inlet, Row
from flowengine.runtime.packer_stage import PackerStage, Parts
from flowengine.runtime.planner import pack_columns
from flowengine.runtime.round import Round
from flowengine.runtime.site import Site


class ReadyPacker(PackerStage):
    """Emits a pack when it is full, or when nobody can add to it."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        assert isinstance(self.spec.what, Packer)
        self._packer = self.spec.what
        self._stream = self._packer.stream()
        self._lengths: dict[int, dict[int, Lengths]] = {}
        self._arrived: dict[int, Parts] = {}
        self._ready: dict[int, Parts] = {}
        self._full: deque[list[int]] = deque()
        self._num_ready = 0
        self._held_up: set[int] = set()
        self._sent: list[list[int]] = []

    def on_notice(self, subject: str, fields: list[Any]) -> None:
        if subject == "held_up":
            worker, is_so = fields
            (self._held_up.add if is_so else self._held_up.discard)(worker)
            return
        assert subject == "lengths", f"unknown notice {subject}"
        number, columns = fields
        self._lengths[number] = {sample: Lengths(*each) for sample, *each in columns}

    def work(self) -> bool:
        round_ = self.rounds.get(self.current)
        if round_ is None or self.current not in self._lengths:
            return self.wait("starved", "the next step's samples")
        if self.assembled is not None:
            return self.pass_on()
        self.collect()
        if not self._full and (self._held_up or self._num_ready == round_.samples):
            self._full.extend(self._stream.flush())
        if self._full:
            return self._begin(self._full.popleft())
        if self.is_closed():
            return self._end(round_)
        return self.wait("starved", "samples with all their features")

    def take_in(self, inlet: Inlet, row: Row) -> None:
        parts = self._arrived.setdefault(row.sample, {})
        parts[inlet.port] = (inlet, row)
        if len(parts) < len(self.ports):
            return
        self._ready[row.sample] = self._arrived.pop(row.sample)
        self._num_ready += 1
        if row.sample in self.site.start.alone:
            self._full.append([row.sample])
        else:
            lengths = self._lengths[self.current][row.sample]
            self._full.extend(self._stream.push(row.sample, lengths))

    def _begin(self, samples: list[int]) -> bool:
        self.assemble([self._ready.pop(sample) for sample in samples])
        self._sent.append(samples)
        return self.pass_on()

    def _end(self, round_: Round) -> bool:
        if self._num_ready < round_.samples:
            raise self.fail_row(
                f"step {round_.step} ended, and of its {round_.samples} samples only "
                f"{self._num_ready} arrived with all their features; a stage between the source "
                "and the packer must give out every sample it takes in"
            )
        self._report(round_)
        self.next, self._num_ready, self._sent = 0, 0, []
        del self._lengths[self.current]
        return self.close_round()

    def _report(self, round_: Round) -> None:
        """Tells the coordinator of the round's packs."""
        known = self._lengths[self.current]
        packs = [[known[sample] for sample in pack] for pack in self._sent]
        columns = pack_columns(round_.step, round_.held_out, packs, self._sent, self._packer)
        if not round_.held_out:
            fill = sum(columns["tokens"]) / (len(packs) * self._packer.max_tokens)
            self.site.notify("packed", round_.step, len(packs), fill)
        self.site.notify("packs", columns)
