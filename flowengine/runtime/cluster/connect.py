"""The connection to a Ray cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from flowengine.errors import GraphError

LOOPBACK = "127.0.0.1"


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Within, this process is connected to the cluster at `address`; None starts one of this
    machine alone, on the loopback device, that ends with the block. A connection that is there is
    used.

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
                address="local", include_dashboard=False, _node_ip_address=LOOPBACK, **settings
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
