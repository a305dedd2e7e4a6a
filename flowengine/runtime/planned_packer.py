"""A packer that passes packs on as they were planned."""

from __future__ import annotations

from flowengine.channel import Inlet, Row
from flowengine.runtime.packer_stage import PackerStage, Parts
from flowengine.runtime.round import Round
from flowengine.runtime.site import Site


class PlannedPacker(PackerStage):
    """Emits pack k of a round once all of its members and their features are there."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._arrived: dict[int, dict[int, Parts]] = {}

    def work(self) -> bool:
        round_ = self.rounds.get(self.current)
        if round_ is None:
            return self.wait("starved", "the next step's samples")
        self.collect()
        if self.assembled is None:
            self._assemble_next(round_)
        if self.assembled is not None:
            return self.pass_on()
        if self.next == len(round_.pack_sizes) and self.is_closed():
            self.next = 0
            return self.close_round()
        if self.is_closed():
            raise self.fail_row(self._describe_gap(round_))
        return self.wait("starved", self._missing(round_))

    def take_in(self, inlet: Inlet, row: Row) -> None:
        members = self._arrived.setdefault(row.pack, {})
        members.setdefault(row.place, {})[inlet.port] = (inlet, row)

    def _assemble_next(self, round_: Round) -> None:
        if self.next == len(round_.pack_sizes):
            return
        size = round_.pack_sizes[self.next]
        if sum(self._count().values()) == size * len(self.ports):
            arrived = self._arrived.pop(self.next)
            self.assemble([arrived[place] for place in range(size)])

    def _count(self) -> dict[str, int]:
        """How many members of the next pack have arrived on each port."""
        arrived = self._arrived.get(self.next, {}).values()
        return {port: sum(port in parts for parts in arrived) for port in self.ports}

    def _describe_gap(self, round_: Round) -> str:
        return (
            f"step {round_.step} ended, and of the {round_.pack_sizes[self.next]} samples of pack "
            f"{self.next} only {self._count()} arrived; a stage between the source and the packer "
            "must give out every sample it takes in"
        )

    def _missing(self, round_: Round) -> str:
        if self.next == len(round_.pack_sizes):
            return "the end of the step"
        size = round_.pack_sizes[self.next]
        return " and ".join(port for port, count in self._count().items() if count < size)
