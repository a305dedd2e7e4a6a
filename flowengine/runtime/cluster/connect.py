"""The connection to a Ray cluster."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from flowengine.errors import GraphError
from flowengine.runtime.threads import computes
from flowengine.runtime.topology import WorkerSpec

LOOPBACK = "127.0.0.1"


def cpus_of(worker: WorkerSpec) -> float:
    """How many of Ray's CPUs a worker's actor counts for."""
    return 1.0 if computes(worker) else 0.25


@contextmanager
def connected(address: str | None, *, num_cpus: float = 1) -> Iterator[None]:
    """Within, this process is connected to the cluster at `address`; None starts one of this
    machine alone, on the loopback device, that ends with the block; it counts at least `num_cpus`,
    so that a graph has room that has more workers than the machine has cores. A connection that is
    there is used.

    GraphError without ray, or if the cluster cannot be reached.
    """
    try:
        import ray
    except ImportError:
        raise GraphError(
            "the ray runtime needs ray, which is not installed; pip install 'flowengine[ray]'"
        ) from None
    if ray.is_initialized():
        yield
        return
    path = os.pathsep.join(entry for entry in sys.path if entry)
    settings = {"runtime_env": {"env_vars": {"PYTHONPATH": path}}, "log_to_driver": False}
    try:
        if address is None:
            ray.init(
                address="local",
                num_cpus=max(math.ceil(num_cpus), os.cpu_count() or 1),
                include_dashboard=False,
                _node_ip_address=LOOPBACK,
                **settings,
            )
        else:
            ray.init(address=address, **settings)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise GraphError(
            f"the cluster at {address or 'this machine'} cannot be reached: {error}; pass "
            "--address HOST:PORT of a running one, or none to start one here"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()
