"""Where worker processes are forked from: a forkserver that has imported what workers need.

A worker then starts in milliseconds instead of seconds. The command line opens the nursery before
it imports torch itself, so that both imports go on at once. This module imports nothing heavy.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext

from flowengine.errors import GraphError

PRELOADED = [
    "torch._dynamo",  # every torch optimizer imports it, in 1.6 s
    "flowengine.runtime.worker",
    "flowengine.schedule.loaded",
    "flowengine.operators.audio",
    "flowengine.operators.language",
    "flowengine.operators.packing",
    "flowengine.operators.sinks",
    "flowengine.operators.sources",
    "flowengine.operators.vision",
]


def open_nursery() -> ForkServerContext:
    """Starts the forkserver if it is not running yet, without waiting for its imports; the context
    whose processes come from it. It ends with this process.

    GraphError in a worker that is just importing the script of the run.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise GraphError(
            "a worker imported this script and came to its call of run(); put that call under "
            "if __name__ == '__main__':"
        )
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()
    return context
