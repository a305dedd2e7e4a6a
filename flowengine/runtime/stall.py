"""Says in words who waits for what when nothing goes on."""

from __future__ import annotations

from flowengine.runtime.events import Status


def describe_stall(status: Status) -> str:
    """One line per stage replica that is not done."""
    waits = [
        f"  {stage.stage}[{stage.replica}] is {stage.state}, waiting for {stage.waits_for}"
        for stage in status.stages
        if stage.state != "done"
    ]
    return "no stage can go on:\n" + "\n".join(waits)
