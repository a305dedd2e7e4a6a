"""Tensors from one process to one other: in order, bounded, and with death noticed."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from flowengine.channel import DirectEnd, DirectInlet, DirectOutlet, open_direct
from flowengine.errors import RunError, WorkerLostError

SIZES = (3, 2000, 3000, 20_000)
"""Numbers of float32: inline, just inline, just in the pool, in the pool."""

SOON_S = 0.5


@pytest.fixture
def ends() -> Iterator[tuple[DirectOutlet, DirectInlet]]:
    """Both ends in this process, of a channel of four items."""
    one, other = open_direct(items=4, size_bytes=1 << 20)
    outlet, inlet = DirectOutlet(one, wait_s=0.01), DirectInlet(other, wait_s=0.01)
    yield outlet, inlet
    one.close()
    other.close()


def produce(end: DirectEnd, count: int, seed: int = 0) -> None:
    """Sends items whose every number is their index, of sizes that follow from the seed."""
    outlet, draw = DirectOutlet(end), random.Random(seed)
    for index in range(count):
        with outlet.reserve((draw.choice(SIZES),), torch.float32) as item:
            item.fill_(index)
    outlet.close()


def consume(end: DirectEnd) -> None:
    """Takes items for ever."""
    for lease in DirectInlet(end):
        with lease as item:
            item.sum()


def put_for_ever(outlet: DirectOutlet) -> None:
    """Until somebody stops it."""
    while True:
        outlet.put(torch.zeros(3000))


def start(target: Any, *args: Any) -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["flowengine.runtime.worker"])
    process = context.Process(target=target, args=args)
    process.start()
    return process


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.int64], ids=str
)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (64, 130)], ids=str)
def test_what_is_put_arrives(
    ends: tuple[DirectOutlet, DirectInlet], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """A tensor of any shape and dtype arrives as it was sent."""
    tensor = torch.randint(0, 100, shape).to(dtype)
    ends[0].put(tensor)
    with next(iter(ends[1])) as item:
        assert item.dtype == dtype
        assert torch.equal(item, tensor)


def test_a_large_item_is_never_copied(ends: tuple[DirectOutlet, DirectInlet]) -> None:
    """What the producer writes later into an item's memory, the consumer sees."""
    outlet, inlet = ends
    with outlet.reserve((5000,), torch.float32) as item:
        item.fill_(1)
    with next(iter(inlet)) as seen:
        item.fill_(2)
        assert (seen == 2).all()


def test_items_under_way_are_bounded(ends: tuple[DirectOutlet, DirectInlet]) -> None:
    """Beyond its credits an outlet waits, and says for what; with items given back it goes on."""
    outlet, inlet = ends
    for _ in range(4):
        outlet.put(torch.zeros(10))
    with pytest.raises(RunError, match=r"gave nothing back for 0.01 s, .* waits for credits"):
        outlet.put(torch.zeros(10))
    items = iter(inlet)
    for _ in range(2):
        next(items).release()
    outlet.put(torch.zeros(10))


def test_bytes_under_way_are_bounded(ends: tuple[DirectOutlet, DirectInlet]) -> None:
    """Beyond its memory an outlet waits, though it has credits."""
    outlet, _ = ends
    for _ in range(2):
        outlet.put(torch.zeros(1 << 17))
    with pytest.raises(RunError, match="waits for room in the pool"):
        outlet.put(torch.zeros(1 << 17))


def test_an_item_that_fails_is_not_sent(ends: tuple[DirectOutlet, DirectInlet]) -> None:
    """An error inside the `with` gives the memory back and sends nothing."""
    outlet, inlet = ends
    with pytest.raises(ZeroDivisionError), outlet.reserve((5000,), torch.float32):
        raise ZeroDivisionError
    assert outlet.pool.num_spans == outlet.sent == 0
    with pytest.raises(RunError, match=r"the producer of this channel sent nothing for 0\.01 s"):
        next(iter(inlet))


def test_a_consumer_that_has_gone_is_told(ends: tuple[DirectOutlet, DirectInlet]) -> None:
    """The producer learns of it when it next waits; what the dead held is free again."""
    outlet, inlet = ends
    for _ in range(4):
        outlet.put(torch.zeros(5000))
    next(iter(inlet))
    inlet._link.close()
    with pytest.raises(WorkerLostError, match=r"4 items were sent; 4 spans .* taken back"):
        outlet.put(torch.zeros(5000))
    assert outlet.pool.used_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_everything_arrives_in_order(seed: int) -> None:
    """Between two processes items of mixed sizes arrive complete and in order."""
    mine, theirs = open_direct(items=5, size_bytes=1 << 18)
    process = start(produce, mine, 500, seed)
    mine.close()
    inlet, draw = DirectInlet(theirs), random.Random(seed)
    seen = 0
    for lease in inlet:
        with lease as item:
            assert item.shape == (draw.choice(SIZES),)
            assert (item == seen).all()
        seen += 1
    inlet.close()
    process.join()
    assert (seen, process.exitcode, inlet.has_ended) == (500, 0, True)
    process.close()


@pytest.mark.slow
def test_killed_producers_are_noticed_and_leave_nothing() -> None:
    """Of 40 producers killed at random moments each is noticed within half a second, the items it
    had sent arrive complete and in order, and no descriptor or shared memory stays."""
    start(os.getpid).join()  # The forkserver, which stays, is there from here on.
    gc.collect()
    before, draw = (len(os.listdir("/proc/self/fd")), set(os.listdir("/dev/shm"))), random.Random(5)
    for _ in range(40):
        mine, theirs = open_direct(items=8, size_bytes=1 << 20)
        process, fatal = start(produce, mine, 10**9), draw.randrange(1, 400)
        mine.close()
        inlet, killed_at = DirectInlet(theirs), 0.0
        for seen, lease in enumerate(inlet):
            with lease as item:
                assert (item == seen).all()
            if seen == fatal:
                os.kill(process.pid, signal.SIGKILL)
                killed_at = time.perf_counter()
        assert 0 < time.perf_counter() - killed_at < SOON_S
        assert not inlet.has_ended
        inlet.close()
        theirs.close()
        process.join()
        process.close()
    del inlet, lease, item, mine, theirs, process
    gc.collect()
    assert (len(os.listdir("/proc/self/fd")), set(os.listdir("/dev/shm"))) == before


@pytest.mark.slow
def test_killed_consumers_are_noticed_and_their_leases_taken_back() -> None:
    """Of 40 consumers killed at random moments each is noticed within half a second, and the
    memory they held is free again."""
    draw = random.Random(6)
    for _ in range(40):
        mine, theirs = open_direct(items=8, size_bytes=1 << 20)
        process, fatal = start(consume, theirs), draw.randrange(1, 400)
        theirs.close()
        outlet = DirectOutlet(mine)
        for _ in range(fatal):
            outlet.put(torch.zeros(draw.choice(SIZES)))
        os.kill(process.pid, signal.SIGKILL)
        killed_at = time.perf_counter()
        with pytest.raises(WorkerLostError, match="the consumer of this channel has gone"):
            put_for_ever(outlet)
        assert time.perf_counter() - killed_at < SOON_S
        assert outlet.pool.used_bytes == outlet.pool.num_spans == 0
        mine.close()
        process.join()
        process.close()
