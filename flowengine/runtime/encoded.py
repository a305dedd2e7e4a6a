"""A pack's features on their way out of an encoder, and as rows of the channels."""

from __future__ import annotations

from dataclasses import dataclass, field

from flowengine.api import Encoder
from flowengine.channel import ROW_BYTES, Row
from flowengine.errors import RunError
from flowengine.graph.description import StageSpec
from flowengine.pool import Payload, Span
from flowengine.runtime.emission import Header, catalogue_entry
from flowengine.runtime.round import Round
from flowengine.runtime.site import Site


@dataclass
class Flight:
    """A pack's features, from the forward until their gradient has been taken in.

    num_rows, num_bytes: of the features. learns: whether a gradient will return. span: where the
    features lie in the pool, once sent; None for a copy of another rank's. returned: whether it
    holds the gradient.
    """

    step: int
    num_rows: int
    num_bytes: int
    learns: bool
    span: Span | None = field(default=None, init=False)
    returned: bool = field(default=False, init=False)


@dataclass
class Encoded:
    """Features that wait for room; flight is None for a pack without this modality.

    rows: the samples'. counts: feature rows of each. version: of the weights.
    """

    round: Round
    pack: int
    rows: list[Row]
    counts: list[int]
    flight: Flight | None
    version: int


def count_features(stage: StageSpec, rows: list[Row], flight: Flight | None) -> list[int]:
    """How many feature rows each sample has; RunError unless the flight has as many in all."""
    assert isinstance(stage.what, Encoder)
    modality = stage.what.modality
    counts = [row.media.get(modality, 0) if row.tree["media"] is not None else 0 for row in rows]
    found = flight.num_rows if flight is not None else 0
    if sum(counts) != found:
        raise RunError(
            f"{stage}: forward gave {found} feature rows for samples "
            f"{[row.sample for row in rows]}, whose lengths announce {counts}; expected "
            f"Lengths.media['{modality}'] rows for each"
        )
    return counts


def feature_rows(
    site: Site, encoded: Encoded, span: Span | None, *, dtype: str, row_bytes: int, readers: int
) -> list[Row]:
    """A row per sample that names its features in the span, which is leased to every reader."""
    encoder = site.worker.stage.what
    assert isinstance(encoder, Encoder)
    features = tuple(encoder.feature_shape())
    rows, first, now = [], 0, site.clock()
    for row, count in zip(encoded.rows, encoded.counts, strict=True):
        shape = (count, *features)
        payload = Payload(b"", 0, 0, dtype, shape)
        if count and span is not None:
            payload = Payload(None, span.address, first * row_bytes, dtype, shape)
            header = Header.of(row, encoded.round)
            entry = catalogue_entry(site, header, payload, now, version=encoded.version)
            span.entries.append(entry)
            span.leases += readers
        tree = {"modality": encoder.modality, "rows": payload}
        rows.append(row._replace(size=ROW_BYTES, tree=tree))
        first += count
    return rows
