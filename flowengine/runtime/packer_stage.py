"""A packer at work: joins samples with their features, and passes packs on.

It moves rows, never payloads: the leases of a pack's features go on to the objective.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from flowengine.channel import ROW_BYTES, Inlet, Row
from flowengine.runtime.site import Site
from flowengine.runtime.spans import Work
from flowengine.runtime.stage import Stage
from flowengine.runtime.topology import SAMPLES

Parts = dict[str, tuple[Inlet, Row]]
"""A sample's rows and where they arrived, by port."""


class PackerStage(Stage):
    """Passes packs on; subclasses know which. ports: one of the samples, and one per modality."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.ports = sorted({inlet.port for inlet in site.inlets})
        self.next = 0
        self.assembled: tuple[Row, list[tuple[Inlet, Row]]] | None = None

    @abstractmethod
    def take_in(self, inlet: Inlet, row: Row) -> None:
        """A row of the current round has arrived."""

    def collect(self) -> None:
        """Takes in what has arrived of the current round."""
        for inlet in self.site.inlets:
            while inlet.rows and inlet.rows[0].number == self.current:
                self.take_in(inlet, inlet.rows.popleft())

    def assemble(self, members: Sequence[Parts]) -> None:
        """Makes the next pack of these samples."""
        tree = []
        for parts in members:
            sample = parts[SAMPLES][1]
            features = {port: parts[port][1].tree["rows"] for port in self.ports if port != SAMPLES}
            tree.append([sample.sample, sample.tree, features])
        rows = [part for parts in members for part in parts.values()]
        size = sum(row.size for _, row in rows) + ROW_BYTES
        tokens = sum(parts[SAMPLES][1].tokens for parts in members)
        row = Row(self.current, self.next, self.next, -1, tokens, {}, size, tree)
        self.assembled = (row, rows)

    def pass_on(self) -> bool:
        """Sends the pack that is assembled; False while there is no room for it."""
        assert self.assembled is not None
        row, parts = self.assembled
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
        self.assembled = None
        self.next += 1
        return True
