"""Host memory and disk: what moves, what stays, and that nobody sees the difference."""

from __future__ import annotations

import multiprocessing
import os
import random
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flowengine.pool import Payload, Pool, Segment
from flowengine.pool.tiers import PAGE

LIMIT, DISK = 10 * PAGE, 20 * PAGE


def make_segments(directory: Path, disk: int = DISK) -> tuple[Segment, Segment]:
    return Segment.create(LIMIT + disk), Segment.on_disk(LIMIT + disk, directory)


def make_pools(directory: Path, disk: int = DISK) -> tuple[Pool, Pool]:
    """An owner's pool and a reader's, in one process."""
    host, file = make_segments(directory, disk)
    nothing = Segment.create(0), Segment.on_disk(0, directory)
    segments, disks = {0: host, 1: nothing[0]}, {0: file, 1: nothing[1]}
    owner = Pool(0, segments, LIMIT, disks=disks, disk_limit=disk)
    return owner, Pool(1, segments, 0, disks=disks)


def put(pool: Pool, value: int, pages: int = 2, turn: tuple[int, int] | None = None) -> Payload:
    """A span full of the value, on lease."""
    span = pool.reserve(pages * PAGE, turn)
    assert span is not None
    (payload,) = pool.write([torch.full((pages * PAGE,), value, dtype=torch.uint8)], span)
    span.leases = 1
    return payload


def on_disk(pool: Pool, payloads: list[Payload]) -> list[int]:
    """The indices of the payloads that have been spilled."""
    return [i for i, payload in enumerate(payloads) if pool._spans[payload.span].on_disk]


def pages_of(segment: Segment) -> int:
    return os.fstat(segment.fd).st_blocks * 512 // PAGE


def test_farthest_next_use_is_spilled_first(tmp_path: Path) -> None:
    """With a plan the entries that are used last go, down to the low mark, whatever their age."""
    pool, _ = make_pools(tmp_path)
    turns = [(0, 3), (0, 1), (1, 0), (0, 0)]
    payloads = [put(pool, i, turn=turn) for i, turn in enumerate(turns)]
    assert on_disk(pool, payloads) == []
    put(pool, 9, turn=(0, 2))
    assert on_disk(pool, payloads) == [0, 2]
    assert (pool.used_bytes, pool.disk_bytes) == (6 * PAGE, 4 * PAGE)


def test_least_recently_used_is_spilled_without_a_plan(tmp_path: Path) -> None:
    """Without a plan the entries that nobody looked at for longest go."""
    pool, _ = make_pools(tmp_path)
    payloads = [put(pool, i) for i in range(4)]
    pool.view(payloads[0])
    put(pool, 9)
    assert on_disk(pool, payloads) == [1, 2]


def test_a_spilled_entry_is_read_as_before(tmp_path: Path) -> None:
    """Readers, and the owner, see the same bytes at the same address in either tier, and may write
    them: a gradient finds its way back."""
    pool, reader = make_pools(tmp_path)
    payloads = [put(pool, i, turn=(0, i)) for i in range(7)]
    assert on_disk(pool, payloads) != []
    for i, payload in enumerate(payloads):
        reader.hold(payload)
        assert (reader.view(payload) == i).all()
        reader.view(payload).add_(100)
        reader.let_go(payload.span)
        assert (pool.view(payload) == 100 + i).all()


def test_what_is_needed_next_is_fetched_back(tmp_path: Path) -> None:
    """When room comes back, the nearest entries return to memory, below the low mark."""
    pool, _ = make_pools(tmp_path)
    payloads = [put(pool, i, turn=(0, i)) for i in range(8)]
    spilled = on_disk(pool, payloads)
    for i in range(8):
        if i not in spilled:
            pool.release(payloads[i].span)
    left = [payloads[i] for i in spilled]
    assert on_disk(pool, left) == list(range(3, len(left)))
    for i, payload in zip(spilled, left, strict=True):
        assert (pool.view(payload) == i).all()


def test_what_is_held_stays(tmp_path: Path) -> None:
    """An entry that somebody looks at is not moved, and pushes back when all are looked at."""
    pool, reader = make_pools(tmp_path)
    views = [reader.leased_view(put(pool, i, turn=(0, i))) for i in range(4)]
    assert pool.reserve(3 * PAGE) is None
    assert all((view == i).all() for i, view in enumerate(views))
    del views[3]
    reader.take_dropped()
    assert pool.reserve(3 * PAGE) is not None


def test_a_full_disk_pushes_back(tmp_path: Path) -> None:
    """With both budgets used up `reserve` says None; the budgets are never exceeded."""
    pool, _ = make_pools(tmp_path, disk=4 * PAGE)
    count = 0
    while (span := pool.reserve(2 * PAGE, (0, count))) is not None:
        span.leases = 1
        count += 1
    assert count == 7
    assert (pool.peak_bytes, pool.peak_disk_bytes) == (10 * PAGE, 4 * PAGE)


def test_freed_memory_is_given_back(tmp_path: Path) -> None:
    """What is spilled or freed has no page in memory, what is freed none on disk."""
    pool, _ = make_pools(tmp_path)
    host, file = pool._segments[0], pool._tiers[0].disk
    payloads = [put(pool, i, turn=(0, i)) for i in range(8)]
    assert pages_of(host) * PAGE == pool.used_bytes
    assert pages_of(file) * PAGE >= pool.disk_bytes > 0
    for payload in payloads:
        pool.release(payload.span)
    assert pages_of(host) == pages_of(file) == pool.used_bytes == pool.disk_bytes == 0


def test_the_file_has_no_name(tmp_path: Path) -> None:
    """Nothing appears in the directory of the disk tier."""
    pool, _ = make_pools(tmp_path)
    for i in range(8):
        put(pool, i)
    assert pool.disk_bytes > 0
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_bytes_survive_any_order(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever is put, looked at, held and released in whatever order: every entry keeps its
    bytes, and neither tier ever exceeds its budget."""
    draw = random.Random(seed)
    pool, reader = make_pools(tmp_path_factory.getbasetemp())
    live: dict[int, tuple[Payload, int]] = {}
    held: dict[int, torch.Tensor] = {}
    for step in range(60):
        action = draw.choice(("put", "put", "look", "hold", "drop", "release"))
        if action == "put":
            pages, turn = draw.randrange(1, 5), draw.choice((None, (0, draw.randrange(50))))
            span = pool.reserve(pages * PAGE - draw.randrange(100), turn)
            if span is not None:
                full = torch.full((span.size,), step, dtype=torch.uint8)
                (payload,) = pool.write([full], span)
                span.leases = 1
                live[span.address] = (payload, step)
        elif action == "drop" and held:
            held.pop(draw.choice(list(held)))
        elif live:
            address = draw.choice(list(live))
            payload, value = live[address]
            if action == "hold":
                held[address] = reader.leased_view(payload)
            elif action == "release" and address not in held:
                pool.release(address)
                del live[address]
        reader.take_dropped()
        for payload, value in live.values():
            assert (pool.view(payload) == value).all()
        assert all((view == live[address][1]).all() for address, view in held.items())
        assert pool.used_bytes <= LIMIT
        assert pool.disk_bytes <= DISK
        assert pages_of(pool._segments[0]) * PAGE <= LIMIT


def hold_for_ever(host: Segment, file: Segment, payload: Payload, told: Connection) -> None:
    """Looks at a payload until it is killed."""
    reader = Pool(1, {0: host}, 0, disks={0: file})
    view = reader.leased_view(payload)
    told.send(int(view[0]))
    told.recv()


@pytest.mark.slow
def test_another_process_holds_and_its_death_lets_go(tmp_path: Path) -> None:
    """What a reader in another process looks at stays; when it is killed the entry moves."""
    host, file = make_segments(tmp_path)
    pool = Pool(0, {0: host}, LIMIT, disks={0: file}, disk_limit=DISK)
    payload = put(pool, 7, pages=4)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["flowengine.runtime.worker"])
    ours, theirs = context.Pipe()
    process = context.Process(target=hold_for_ever, args=(host, file, payload, theirs))
    process.start()
    assert ours.recv() == 7
    assert pool.reserve(7 * PAGE) is None
    process.kill()
    process.join()
    span = pool.reserve(7 * PAGE)
    assert span is not None
    assert pool._spans[payload.span].on_disk
    assert (pool.view(payload) == 7).all()
    process.close()
    ours.close()
    theirs.close()
