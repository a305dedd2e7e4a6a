"""The transports of bench_channel: each carries torch tensors from one process to one other.

A transport that `pairs` has `make`, which gives the two ends (arguments of new processes), and
`produce`; one that does not starts the producer's process itself, out of `consume`. `consume` gives
the items, each valid until the next is asked for.
"""

from __future__ import annotations

import ctypes
import importlib.util
import multiprocessing
import os
import socket
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.dlpack import from_dlpack

from flowengine.channel import DirectInlet, DirectOutlet, open_direct

DEPTH = 16
METHOD = "forkserver"


class Work:
    """What the producer does for each of `count` items of `size` bytes: one pass of torch, into
    `out` where there is one. With `acknowledged`, the item starts with the time at which it was
    made, and the next is made when somebody says there that this one has arrived."""

    def __init__(self, size: int, count: int, acknowledged: Connection | None = None) -> None:
        self.size, self.count = size, count
        self.num_floats = size // 4
        self._acknowledged = acknowledged
        self._x: Tensor | None = None

    def __call__(self, number: int, out: Tensor | None = None) -> Tensor:
        if self._x is None:
            torch.set_num_threads(1)
            self._x = torch.rand(self.num_floats)
        made = torch.add(self._x, number, out=out)
        if self._acknowledged is not None:
            made[:2].view(torch.int64)[0] = time.perf_counter_ns()
        return made

    def numbers(self) -> Iterator[int]:
        """One per item."""
        for number in range(self.count):
            yield number
            if self._acknowledged is not None:
                self._acknowledged.recv_bytes()


def items_of(work: Work) -> Iterator[Tensor]:
    """The items, each in memory of its own."""
    for number in work.numbers():
        yield work(number)


class Transport(ABC):
    """One way to carry items."""

    name: str
    needs: tuple[str, ...] = ()
    pairs = True

    def is_installed(self) -> bool:
        """Whether the modules it needs can be found."""
        return all(importlib.util.find_spec(module) for module in self.needs)

    def make(self, work: Work) -> tuple[Any, Any]:
        """The producer's end and the consumer's."""
        return None, None

    def produce(self, end: Any, work: Work) -> None:
        """Sends all items; returns when the memory they lie in may go."""

    @abstractmethod
    def consume(self, end: Any, work: Work) -> Iterator[Tensor]:
        """Receives all items."""

    def forget(self, ends: tuple[Any, Any]) -> None:
        """Lets go of what the process that made the ends holds."""


class Flow(Transport):
    """The engine's direct channel: computed in place, read in place."""

    name = "flowengine"

    def make(self, work: Work) -> tuple[Any, Any]:
        return open_direct(items=DEPTH, size_bytes=DEPTH * max(work.size, 4096))

    def produce(self, end: Any, work: Work) -> None:
        outlet = DirectOutlet(end)
        shape = (work.num_floats,)
        for number in work.numbers():
            with outlet.reserve(shape, torch.float32) as item:
                work(number, item)
        outlet.close()

    def consume(self, end: Any, work: Work) -> Iterator[Tensor]:
        inlet = DirectInlet(end)
        for lease in inlet:
            with lease as item:
                yield item
        inlet.close()

    def forget(self, ends: tuple[Any, Any]) -> None:
        for end in ends:
            end.close()


class Queue(Transport):
    """multiprocessing.Queue of NumPy arrays."""

    name = "multiprocessing.Queue"

    def make(self, work: Work) -> tuple[Any, Any]:
        queue: Any = multiprocessing.get_context(METHOD).Queue(DEPTH)
        return queue, queue

    def produce(self, end: Any, work: Work) -> None:
        for item in items_of(work):
            end.put(item.numpy())

    def consume(self, end: Any, work: Work) -> Iterator[Tensor]:
        for _ in range(work.count):
            yield torch.from_numpy(end.get())


class TorchQueue(Transport):
    """torch.multiprocessing: the tensors in shared memory, their handles in the queue."""

    name = "torch.multiprocessing"

    def make(self, work: Work) -> tuple[Any, Any]:
        context = torch.multiprocessing.get_context(METHOD)
        end = (context.Queue(DEPTH), context.Event())
        return end, end

    def consume(self, end: Any, work: Work) -> Iterator[Tensor]:
        queue, received = end
        for _ in range(work.count):
            yield queue.get()
        received.set()

    def produce(self, end: Any, work: Work) -> None:
        queue, received = end
        for item in items_of(work):
            queue.put(item)
        received.wait()


class Zmq(Transport):
    """pyzmq, PUSH to PULL over a Unix socket; without pyzmq's own copies from 64 KiB on."""

    name = "pyzmq"
    needs = ("zmq",)

    def make(self, work: Work) -> tuple[Any, Any]:
        path = f"ipc://{tempfile.gettempdir()}/bench-{uuid.uuid4().hex}"
        return path, path

    def produce(self, end: Any, work: Work) -> None:
        import zmq

        pusher = zmq.Context().socket(zmq.PUSH)
        pusher.set_hwm(DEPTH // 2)
        pusher.bind(end)
        for item in items_of(work):
            pusher.send(item.numpy(), copy=work.size < 65536)
        pusher.close(linger=10_000)

    def consume(self, end: Any, work: Work) -> Iterator[Tensor]:
        import zmq

        puller = zmq.Context().socket(zmq.PULL)
        puller.set_hwm(DEPTH // 2)
        puller.connect(end)
        for _ in range(work.count):
            frame = puller.recv(copy=work.size < 65536)
            raw = bytearray(frame) if work.size < 65536 else np.frombuffer(frame.buffer, np.uint8)
            yield torch.frombuffer(raw, dtype=torch.float32)

    def forget(self, ends: tuple[Any, Any]) -> None:
        with suppress(FileNotFoundError):
            os.unlink(ends[0].removeprefix("ipc://"))


class Iceoryx(Transport):
    """iceoryx2: computed in a loaned sample, read in place, woken by an event."""

    name = "iceoryx2"
    needs = ("iceoryx2", "flatbuffers")

    def make(self, work: Work) -> tuple[Any, Any]:
        name = f"bench/{uuid.uuid4().hex}"
        return name, name

    def produce(self, end: Any, work: Work) -> None:
        import iceoryx2 as iox

        node, data, event = self._open(end)
        publisher = (
            data.publisher_builder()
            .initial_max_slice_len(work.num_floats)
            .backpressure_strategy(iox.BackpressureStrategy.RetryUntilDelivered)
            .create()
        )
        notifier = event.notifier_builder().create()
        while not data.dynamic_config.number_of_subscribers:
            time.sleep(0.001)
        for number in work.numbers():
            sample = publisher.loan_slice_uninit(work.num_floats)
            work(number, self._tensor(sample, work))
            sample.assume_init().send()
            notifier.notify()
        while data.dynamic_config.number_of_subscribers:
            time.sleep(0.001)
        del node

    def consume(self, end: Any, work: Work) -> Iterator[Tensor]:
        import iceoryx2 as iox

        node, data, event = self._open(end)
        listener = event.listener_builder().create()
        subscriber = data.subscriber_builder().buffer_size(DEPTH).create()
        for _ in range(work.count):
            while (sample := subscriber.receive()) is None:
                listener.timed_wait(iox.Duration.from_millis(100))
            yield self._tensor(sample, work)
            sample.delete()
        del node

    def _open(self, name: str) -> tuple[Any, Any, Any]:
        import iceoryx2 as iox

        iox.set_log_level(iox.LogLevel.Fatal)
        node = iox.NodeBuilder.new().create(iox.ServiceType.Ipc)
        service = iox.ServiceName.new(name)
        data = node.service_builder(service).publish_subscribe(iox.Slice[ctypes.c_float])
        data = data.subscriber_max_buffer_size(DEPTH).enable_safe_overflow(False)
        return node, data.open_or_create(), node.service_builder(service).event().open_or_create()

    def _tensor(self, sample: Any, work: Work) -> Tensor:
        memory = (ctypes.c_float * work.num_floats).from_address(sample.payload().as_ptr())
        return torch.frombuffer(memory, dtype=torch.float32)


class ArrowStream(Transport):
    """Arrow IPC: a stream of record batches of one column over a Unix socket."""

    name = "Arrow IPC"
    needs = ("pyarrow",)

    def make(self, work: Work) -> tuple[Any, Any]:
        return socket.socketpair()

    def produce(self, end: Any, work: Work) -> None:
        import pyarrow as pa

        schema = pa.schema([pa.field("x", pa.float32())])
        with end.makefile("wb", buffering=0) as file, pa.ipc.new_stream(file, schema) as writer:
            for item in items_of(work):
                writer.write_batch(pa.record_batch([pa.array(item.numpy())], schema=schema))

    def consume(self, end: Any, work: Work) -> Iterator[Tensor]:
        import pyarrow as pa

        with end.makefile("rb") as file, pa.ipc.open_stream(file) as reader:
            for batch in reader:
                yield from_dlpack(batch.column(0))

    def forget(self, ends: tuple[Any, Any]) -> None:
        for end in ends:
            end.close()


class Spdl(Transport):
    """SPDL: iterate_in_subprocess with its pool of shared-memory segments."""

    name = "SPDL"
    needs = ("spdl.pipeline",)
    pairs = False

    def consume(self, end: Any, work: Work) -> Iterator[Tensor]:
        from spdl.pipeline import SharedMemorySegmentPool, iterate_in_subprocess

        arena = SharedMemorySegmentPool(segment_size=work.size + 4096, count=DEPTH)
        yield from iterate_in_subprocess(
            partial(items_of, work), buffer_size=DEPTH, mp_context=METHOD, arena=arena
        )


class Loader(Transport):
    """torch's DataLoader with one worker."""

    name = "DataLoader"
    pairs = False

    def consume(self, end: Any, work: Work) -> Iterator[Tensor]:
        yield from DataLoader(
            Items(work),
            batch_size=None,
            num_workers=1,
            prefetch_factor=DEPTH,
            multiprocessing_context=METHOD,
        )


class Items(IterableDataset[Tensor]):
    """The items as a dataset."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __iter__(self) -> Iterator[Tensor]:
        return items_of(self._work)


TRANSPORTS: tuple[Transport, ...] = (
    Flow(),
    Queue(),
    TorchQueue(),
    Zmq(),
    Iceoryx(),
    ArrowStream(),
    Spdl(),
    Loader(),
)
