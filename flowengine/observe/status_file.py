"""status.json: the last look at the stages while a run goes on, for those who watch from outside.

    pid               of the process that supervises the run; host: its name
    wall_s            seconds since the run started; written_s: of the clock, since 1970
    stages            one per replica: the fields of flowengine.runtime.events.StageStatus
    pool, channels    the fields of PoolStatus; a list of those of ChannelStatus

The file is written over in place, at most every WRITE_S seconds: replacing it by another would make
ext4 write it to the disk at once, 7 ms of the supervisor's time. A reader who meets half of a write
finds no JSON, and looks again later.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flowengine.observe.event_json import dump_json
from flowengine.runtime.events import ChannelStatus, PoolStatus, StageStatus, Status

NAME = "status.json"
WRITE_S = 0.5


class StatusFile:
    """Writes the file of `run_dir`, padded with spaces to the longest text so far."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / NAME
        self._written_s = -WRITE_S
        self._size = 0

    def write(self, status: Status) -> None:
        """Replaces the file, unless it was replaced just now."""
        if status.wall_s - self._written_s < WRITE_S:
            return
        self._written_s = status.wall_s
        record = {"pid": os.getpid(), "host": socket.gethostname(), "written_s": time.time()}
        text = dump_json({**record, **asdict(status)}).encode()
        self._size = max(self._size, len(text))
        with self._path.open("r+b" if self._path.exists() else "wb", buffering=0) as file:
            file.write(text.ljust(self._size))


def read_status(run_dir: Path) -> tuple[Status, dict[str, Any]] | None:
    """The status, and the file's other fields; None if there is nothing to read just now."""
    try:
        record = json.loads((run_dir / NAME).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    stages = tuple(
        StageStatus(**{**stage, "in_hand": tuple(stage["in_hand"])})
        for stage in record.pop("stages")
    )
    channels = tuple(ChannelStatus(**channel) for channel in record.pop("channels"))
    status = Status(record.pop("wall_s"), stages, PoolStatus(**record.pop("pool")), channels)
    return status, record
