"""A pack's features on their way out of an encoder, as rows of the channels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flowengine.api import Encoder
from flowengine.channel import ROW_BYTES, Row
from flowengine.errors import RunError
from flowengine.graph.description import StageSpec
from flowengine.pool import Payload, Span
from flowengine.pool.payload import dtype_name
from flowengine.runtime.emission import Header, catalogue_entry
from flowengine.runtime.flight import Flight
from flowengine.runtime.round import Round
from flowengine.runtime.site import Site


@dataclass
class Encoded:
    """Features that wait for room; flight is None for a pack without this modality.

    rows: the samples'. counts: feature rows of each.
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
    found = flight.shape[0] if flight is not None else 0
    if sum(counts) != found:
        raise RunError(
            f"{stage}: forward gave {found} feature rows for samples "
            f"{[row.sample for row in rows]}, whose lengths announce {counts}; expected "
            f"Lengths.media['{modality}'] rows for each"
        )
    return counts


def feature_rows(site: Site, encoded: Encoded, span: Span | None, *, num_readers: int) -> list[Row]:
    """A row per sample that names its features in the span, which is leased to every reader."""
    encoder, version = site.worker.stage.what, encoded.version
    assert isinstance(encoder, Encoder)
    features, dtype = encoder.feature_shape(), getattr(torch, site.graph.dtype)
    row_bytes = torch.empty(features, dtype=dtype).nbytes
    rows, first, now = [], 0, site.clock()
    for row, count in zip(encoded.rows, encoded.counts, strict=True):
        shape = (count, *features)
        payload = Payload(b"", 0, 0, dtype_name(dtype), shape)
        if count and span is not None:
            payload = Payload(None, span.address, first * row_bytes, dtype_name(dtype), shape)
            header = Header.of(row, encoded.round)
            span.entries.append(catalogue_entry(site, header, payload, now, version=version))
            span.leases += num_readers
        tree = {"modality": encoder.modality, "rows": payload}
        rows.append(row._replace(size=ROW_BYTES, tree=tree))
        first += count
    return rows
