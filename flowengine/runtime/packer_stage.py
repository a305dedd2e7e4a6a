"""The packer at work: joins samples with their features, and passes packs on in the plan's order.

It moves rows, never payloads: the leases of a pack's features go on to the objective.
"""

from __future__ import annotations

from typing import Any

from flowengine.channel import ROW_BYTES, Inlet, Row
from flowengine.runtime.round import Round
from flowengine.runtime.site import Site
from flowengine.runtime.spans import Work
from flowengine.runtime.stage import Stage
from flowengine.runtime.topology import SAMPLES


class PackerStage(Stage):
    """Emits pack k of a round once all of its members and their features are there."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._ports = sorted({inlet.port for inlet in site.inlets})
        self._arrived: dict[int, dict[tuple[str, int], tuple[Inlet, Row]]] = {}
        self._next = 0
        self._assembled: tuple[Row, list[tuple[Inlet, Row]]] | None = None

    def work(self) -> bool:
        round_ = self.rounds.get(self.current)
        if round_ is None:
            return self.wait("starved", "the next step's samples")
        self._collect()
        if self._assembled is None:
            self._assembled = self._assemble(round_)
        if self._assembled is not None:
            return self._pass_on()
        if self._next == len(round_.pack_sizes) and self.is_closed():
            self._next = 0
            return self.close_round()
        if self.is_closed():
            raise self.fail_row(self._describe_gap(round_))
        return self.wait("starved", self._missing(round_))

    def _collect(self) -> None:
        for inlet in self.site.inlets:
            while inlet.rows and inlet.rows[0].number == self.current:
                row = inlet.rows.popleft()
                self._arrived.setdefault(row.pack, {})[inlet.port, row.place] = (inlet, row)

    def _assemble(self, round_: Round) -> tuple[Row, list[tuple[Inlet, Row]]] | None:
        if self._next == len(round_.pack_sizes):
            return None
        size = round_.pack_sizes[self._next]
        arrived = self._arrived.get(self._next, {})
        if len(arrived) < size * len(self._ports):
            return None
        del self._arrived[self._next]
        members = []
        for place in range(size):
            rows = {port: arrived[port, place][1] for port in self._ports}
            features = {port: row.tree["rows"] for port, row in rows.items() if port != SAMPLES}
            members.append([rows[SAMPLES].sample, rows[SAMPLES].tree, features])
        parts = list(arrived.values())
        bytes_ = sum(row.size for _, row in parts) + ROW_BYTES
        tokens = sum(row.tokens for inlet, row in parts if inlet.port == SAMPLES)
        row = Row(self.current, self._next, self._next, -1, tokens, {}, bytes_, members)
        return row, parts

    def _pass_on(self) -> bool:
        assert self._assembled is not None
        row, parts = self._assembled
        round_ = self.rounds[self.current]
        work = Work("join", round_.step, round_.held_out, row.pack)
        self.take_in_hand(tuple(member[0] for member in row.tree), work)
        (edge,) = self.site.edges
        outlet = edge.route(row.pack)
        if not outlet.could_hold(1, row.size):
            raise self.fail_row(
                f"pack {row.pack} has {row.size} bytes of rows, the channel to '{edge.reader}' "
                f"holds {outlet.bound_bytes}; raise its credits=Credits(size=)"
            )
        if not outlet.has_room(1, row.size):
            return self.wait("blocked", f"credits of '{edge.reader}'")
        outlet.send([row])
        by_inlet: dict[int, list[Row]] = {}
        for inlet, part in parts:
            by_inlet.setdefault(inlet.channel, []).append(part)
        for inlet in self.site.inlets:
            inlet.give_back(by_inlet.get(inlet.channel, []))
        self._assembled = None
        self._next += 1
        return True

    def _describe_gap(self, round_: Round) -> str:
        arrived = self._arrived.get(self._next, {})
        found = {port: sum(1 for name, _ in arrived if name == port) for port in self._ports}
        return (
            f"step {round_.step} ended, and of the {round_.pack_sizes[self._next]} samples of pack "
            f"{self._next} only {found} arrived; a stage between the source and the packer must "
            "give out every sample it takes in"
        )

    def _missing(self, round_: Round) -> str:
        if self._next == len(round_.pack_sizes):
            return "the end of the step"
        arrived: dict[tuple[str, int], Any] = self._arrived.get(self._next, {})
        counts = {port: sum(1 for p, _ in arrived if p == port) for port in self._ports}
        late = [port for port in self._ports if counts[port] < round_.pack_sizes[self._next]]
        return " and ".join(late)
