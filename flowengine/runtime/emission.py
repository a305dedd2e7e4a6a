"""Rows on their way out: they leave together, once every channel and the pool have room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from flowengine.channel import ROW_BYTES, Outlet, Row, flatten, weigh
from flowengine.errors import RunError
from flowengine.pool import INLINE_BYTES, Holdings, Payload, Span, inline_payload
from flowengine.pool.allocator import align
from flowengine.runtime.round import Round
from flowengine.runtime.site import Edge, Site


@dataclass(frozen=True)
class Header:
    """What a row says besides its value; see flowengine.channel.message.Row."""

    round: Round
    sample: int
    pack: int = -1
    place: int = -1
    tokens: int = 0
    media: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, row: Row, round_: Round) -> Header:
        """The header of a value made from this row."""
        return cls(round_, row.sample, row.pack, row.place, row.tokens, row.media)

    @property
    def turn(self) -> tuple[int, int] | None:
        """When the plan has it used, None without a plan."""
        return (self.round.number, self.pack) if self.pack >= 0 else None

    @property
    def key(self) -> int:
        """What replicas are chosen by: the pack where there is a plan, else the sample."""
        return self.pack if self.pack >= 0 else abs(self.sample)


@dataclass
class Emission:
    """Values for the edges of one output port. Large tensors go into one span of the pool, each
    once, however many rows name them."""

    site: Site
    sends: list[tuple[Outlet, str, list[tuple[Header, Any, int]]]]
    tensors: list[Tensor]
    labels: list[Header]
    span: Span | None = None
    version: int | None = None
    entries: dict[int, dict[str, Any]] = field(default_factory=dict)

    def try_send(self, pool: Holdings, now: float) -> str | None:
        """Sends everything and says None; or sends nothing and says what there is no room in."""
        for outlet, reader, rows in self.sends:
            size = sum(size for _, _, size in rows)
            if not outlet.could_hold(len(rows), size):
                raise RunError(
                    f"stage '{self.site.worker.stage.name}': {len(rows)} rows of {size} bytes go "
                    f"to '{reader}' at once, its channel holds {outlet.bound_items} rows and "
                    f"{outlet.bound_bytes} bytes; raise its credits=Credits(items=, size=)"
                )
            if not outlet.has_room(len(rows), size):
                self._refuse_stuck(outlet, reader, rows[0][0])
                return f"credits of '{reader}'"
        if self.tensors and self.span is None:
            size = sum(align(tensor.nbytes) for tensor in self.tensors)
            self.span = pool.reserve(size, self.labels[0].turn)
            if self.span is None:
                return "room in the pool"
        self._send(pool, now)
        return None

    def _refuse_stuck(self, outlet: Outlet, reader: str, header: Header) -> None:
        if outlet.is_stuck(header.round.number, header.pack):
            raise RunError(
                f"stage '{self.site.worker.stage.name}': pack {header.pack} has more rows than "
                f"the channel to '{reader}' holds, {outlet.bound_items} rows and "
                f"{outlet.bound_bytes} bytes, and '{reader}' takes whole packs; raise its "
                "credits=Credits(items=, size=)"
            )

    def _send(self, pool: Holdings, now: float) -> None:
        payloads: list[Payload] = []
        if self.span is not None:
            payloads = pool.write(self.tensors, self.span)
            for payload, header in zip(payloads, self.labels, strict=True):
                entry = catalogue_entry(self.site, header, payload, now, version=self.version)
                self.span.entries.append(entry)
        for outlet, _, rows in self.sends:
            outlet.send([self._row(header, tree, size, payloads) for header, tree, size in rows])

    def _row(self, header: Header, tree: Any, size: int, payloads: list[Payload]) -> Row:
        filled = _fill(tree, payloads, self.span)
        place = (header.pack, header.place, header.tokens, dict(header.media))
        return Row(header.round.number, header.sample, *place, size, filled)


@dataclass(frozen=True)
class _Slot:
    """Stands in a tree for tensor `index` of the emission until the tensor has its place."""

    index: int
    array: bool


def prepare(site: Site, edges: Sequence[Edge], values: Sequence[tuple[Header, Any]]) -> Emission:
    """The emission of these values on all of these edges."""
    tensors: list[Tensor] = []
    labels: list[Header] = []
    known: dict[int, tuple[int, Tensor]] = {}
    sends = []
    for edge in edges:
        by_outlet: dict[int, list[tuple[Header, Any, int]]] = {}
        for header, value in values:

            def place(tensor: Tensor, array: bool, header: Header = header) -> Any:
                if tensor.nbytes <= INLINE_BYTES:
                    payload = inline_payload(tensor)
                    return Payload(*_fields(payload), True) if array else payload
                index, _ = known.setdefault(id(tensor), (len(tensors), tensor))
                if index == len(tensors):
                    tensors.append(tensor.detach())
                    labels.append(header)
                return _Slot(index, array)

            tree = flatten(edge.trim(value), place)
            by_outlet.setdefault(edge.outlets.index(edge.route(header.key)), []).append(
                (header, tree, ROW_BYTES + weigh(tree))
            )
        sends += [(edge.outlets[i], edge.reader, rows) for i, rows in sorted(by_outlet.items())]
    return Emission(site, sends, tensors, labels)


def catalogue_entry(
    site: Site, header: Header, payload: Payload, now: float, *, version: int | None
) -> dict[str, Any]:
    """The catalogue's row for a payload in the pool; how and when it ends is filled in later."""
    return {
        "sample": header.sample,
        "step": header.round.step,
        "held_out": header.round.held_out,
        "pack": header.pack,
        "stage": site.worker.stage.name,
        "replica": site.worker.replica,
        "dtype": payload.dtype,
        "shape": list(payload.shape),
        "size_bytes": payload.num_bytes,
        "address": payload.span + payload.offset,
        "tier": "host",
        "version": version,
        "tokens": header.tokens,
        "made_s": now,
        "returned_s": now,
        "state": "released",
    }


def _fields(payload: Payload) -> tuple[bytes | None, int, int, str, tuple[int, ...]]:
    return payload.data, payload.span, payload.offset, payload.dtype, payload.shape


def _fill(tree: Any, payloads: list[Payload], span: Span | None) -> Any:
    if isinstance(tree, _Slot):
        assert span is not None
        span.leases += 1
        payload = payloads[tree.index]
        return Payload(*_fields(payload), True) if tree.array else payload
    if isinstance(tree, dict):
        return {key: _fill(item, payloads, span) for key, item in tree.items()}
    if isinstance(tree, list):
        return [_fill(item, payloads, span) for item in tree]
    if isinstance(tree, tuple):
        return tuple(_fill(item, payloads, span) for item in tree)
    return tree
