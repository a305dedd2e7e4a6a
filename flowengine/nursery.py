"""Where worker processes are forked from: a forkserver that has imported what workers need.

A worker then starts in milliseconds instead of seconds. The command line opens the nursery before
it imports torch itself, so that both imports go on at once. This module imports nothing heavy.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext

PRELOADED = [
    "flowengine.runtime.worker",
    "flowengine.operators.language",
    "flowengine.operators.packing",
    "flowengine.operators.sinks",
    "flowengine.operators.sources",
    "flowengine.operators.vision",
]


def open_nursery() -> ForkServerContext:
    """Starts the forkserver if it is not running yet, without waiting for its imports; the context
    whose processes come from it. It ends with this process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()
    return context
