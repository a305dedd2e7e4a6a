"""A peer's bytes are fetched once per lease, whatever is looked at, and gradients go back."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import small_graph

from flowengine.errors import GraphError
from flowengine.pool import Payload, Pool, Segment
from flowengine.runtime import execute
from flowengine.runtime.cluster.mirror import Fetched, MirrorPool, Range

MAKER, READER, SIZE = 0, 1, 2**16


class Pair:
    """A maker's pool, and a reader's on another machine; asked: what was fetched."""

    def __init__(self) -> None:
        self.segment = Segment.create(SIZE)
        self.maker = Pool(MAKER, {MAKER: self.segment, READER: Segment.create(SIZE)}, SIZE)
        mirrors = {MAKER: Segment.create(SIZE), READER: Segment.create(SIZE)}
        self.reader = MirrorPool(READER, mirrors, SIZE, ask=self._ask)
        self.asked: list[list[Range]] = []

    def _ask(self, owner: int, ranges: Sequence[Range]) -> Fetched:
        assert owner == MAKER
        self.asked.append(list(ranges))
        found: np.ndarray[Any, Any] = np.concatenate(
            [self.segment.bytes[at : at + size].copy() for at, size in ranges]
        )
        return lambda: found


def put(pair: Pair, count: int = 3) -> list[Payload]:
    payloads = pair.maker.put([torch.full((4, 4), float(i)) for i in range(count)])
    assert payloads is not None
    return payloads


def test_rows_of_a_span_are_fetched_in_one_call() -> None:
    """What a message names is asked for once, and looked at part by part."""
    pair = Pair()
    payloads = put(pair)
    pair.reader.prefetch(payloads)
    views = [pair.reader.view(payload) for payload in payloads]
    assert [float(view.mean()) for view in views] == [0.0, 1.0, 2.0]
    assert len(pair.asked) == 1


def test_what_was_not_announced_is_fetched_when_it_is_looked_at() -> None:
    """And not again while the lease is out."""
    pair = Pair()
    payload = put(pair)[1]
    for _ in range(2):
        assert float(pair.reader.view(payload).mean()) == 1.0
    assert pair.asked == [[(payload.offset, 64)]]


def test_a_gradient_goes_back_as_the_bytes_that_were_written() -> None:
    """A view is the mirror itself: what is written over features is what is returned."""
    pair = Pair()
    payload = put(pair)[2]
    pair.reader.prefetch([payload])
    pair.reader.view(payload).fill_(7.0)
    for (at, size), raw in pair.reader.written(payload.span):
        pair.segment.bytes[at : at + size] = raw
    assert float(pair.maker.view(payload).mean()) == 7.0


def test_after_the_last_lease_the_bytes_are_fetched_again() -> None:
    """A span's address is used again; what was there before is not shown."""
    pair = Pair()
    first, second, _ = put(pair)
    pair.reader.prefetch([first, second])
    pair.reader.view(first)
    pair.reader.forget(first.span, 1)
    pair.reader.view(second)
    assert len(pair.asked) == 1
    pair.reader.forget(first.span, 1)
    pair.maker.view(first).fill_(9.0)
    assert float(pair.reader.view(first).mean()) == 9.0


def test_without_ray_the_runtime_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a traceback of an import."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(GraphError, match=r"pip install 'flowengine\[ray\]'"):
        execute(small_graph(), runtime="ray", run_dir=tmp_path, observe=lambda _: None)
