"""Where the stages of a graph stand in a picture: layers from left to right, few crossings.

A stage stands one layer right of the rightmost stage it reads (longest path). A stream that passes
layers gets a waypoint in each, so that it is drawn around the stages there. Within a layer, stages
and waypoints are ordered by the mean place of their neighbours, in sweeps (Sugiyama, Tagawa and
Toda 1981).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

SWEEPS = 8


@dataclass(frozen=True)
class Place:
    """layer: counted from the left. row: counted downwards, may be negative or fractional."""

    layer: int
    row: float


@dataclass(frozen=True)
class Layout:
    """places: of the stages. routes: per stream (from, to), the places it passes in between."""

    places: Mapping[str, Place]
    routes: Mapping[tuple[str, str], tuple[Place, ...]]

    @property
    def num_layers(self) -> int:
        return 1 + max((place.layer for place in self.places.values()), default=0)

    @property
    def num_rows(self) -> float:
        """Rows from the topmost place to the lowest, waypoints included."""
        rows = [place.row for place in self.places.values()]
        rows += [place.row for route in self.routes.values() for place in route]
        return 1 + max(rows, default=0) - min(rows, default=0)


def lay_out(names: Sequence[str], streams: Sequence[tuple[str, str]]) -> Layout:
    """Places for these stages; streams that close a cycle do not count."""
    streams = _without_cycles(names, streams)
    layers = _layers(names, streams)
    chains = {
        (a, b): [a, *(f"{a}>{b}@{layer}" for layer in range(layers[a] + 1, layers[b])), b]
        for a, b in streams
    }
    columns: list[list[str]] = [[] for _ in range(1 + max(layers.values(), default=0))]
    for name in names:
        columns[layers[name]].append(name)
    for (a, _), chain in chains.items():
        for offset, waypoint in enumerate(chain[1:-1], start=1):
            columns[layers[a] + offset].append(waypoint)
    links = [pair for chain in chains.values() for pair in pairwise(chain)]
    _sort_columns(columns, links)
    rows = _rows(columns, links)
    places = {
        name: Place(layer, rows[name]) for layer, column in enumerate(columns) for name in column
    }
    return Layout(
        places={name: places[name] for name in names},
        routes={
            pair: tuple(places[waypoint] for waypoint in chain[1:-1])
            for pair, chain in chains.items()
        },
    )


def _without_cycles(
    names: Sequence[str], streams: Sequence[tuple[str, str]]
) -> list[tuple[str, str]]:
    """The streams, less those that lead back to a stage they come from."""
    kept: list[tuple[str, str]] = []
    open_names: set[str] = set()
    seen: set[str] = set()

    def visit(name: str) -> None:
        open_names.add(name)
        seen.add(name)
        for a, b in streams:
            if a == name and b not in open_names:
                kept.append((a, b))
                if b not in seen:
                    visit(b)
        open_names.discard(name)

    for name in names:
        if name not in seen:
            visit(name)
    return kept


def _layers(names: Sequence[str], streams: Sequence[tuple[str, str]]) -> dict[str, int]:
    """The longest path to each stage from a stage that reads nothing."""
    layers: dict[str, int] = {}

    def layer_of(name: str) -> int:
        if name not in layers:
            layers[name] = 1 + max((layer_of(a) for a, b in streams if b == name), default=-1)
        return layers[name]

    for name in names:
        layer_of(name)
    return layers


def _neighbours(links: Sequence[tuple[str, str]]) -> dict[str, tuple[list[str], list[str]]]:
    """Per place, those left of it and those right of it."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for a, b in links:
        found.setdefault(a, ([], []))[1].append(b)
        found.setdefault(b, ([], []))[0].append(a)
    return found


def _sort_columns(columns: list[list[str]], links: Sequence[tuple[str, str]]) -> None:
    """Orders every column in place, sweeping right by left neighbours, then left by right ones."""
    around = _neighbours(links)
    rank = {name: row for column in columns for row, name in enumerate(column)}
    for sweep in range(SWEEPS):
        side = sweep % 2
        for column in columns if side == 0 else reversed(columns):
            means = {}
            for name in column:
                ranks = [rank[other] for other in around.get(name, ([], []))[side]]
                means[name] = sum(ranks) / len(ranks) if ranks else float(rank[name])
            column.sort(key=means.__getitem__)
            rank.update({name: row for row, name in enumerate(column)})


def _rows(columns: list[list[str]], links: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Rows at least 1 apart in a column, as near as can be to the rows of the left neighbours, so
    that a chain is level."""
    around = _neighbours(links)
    rows: dict[str, float] = {}
    for column in columns:
        wanted = []
        for name in column:
            left = [rows[other] for other in around.get(name, ([], []))[0]]
            wanted.append(sum(left) / len(left) if left else 0.0)
        rows.update(zip(column, _spread(wanted), strict=True))
    return rows


def _spread(wanted: list[float]) -> list[float]:
    """The rows closest to `wanted`, in this order and at least 1 apart (pooled neighbours)."""
    blocks: list[tuple[float, int]] = []
    for index, row in enumerate(wanted):
        mean, count = row - index, 1
        while blocks and blocks[-1][0] > mean:
            above, size = blocks.pop()
            mean, count = (above * size + mean * count) / (size + count), size + count
        blocks.append((mean, count))
    flat = [mean for mean, count in blocks for _ in range(count)]
    return [row + index for index, row in enumerate(flat)]
