"""A run that goes on, followed through the files of its directory alone."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flowengine.observe.event_json import parse_event
from flowengine.observe.run_files import RunFiles
from flowengine.observe.status_file import read_status
from flowengine.observe.tally import Tally

SILENT_S = 30.0
"""A run on another machine that has not written for so long is taken to be gone."""


class Follower:
    """Keeps `tally` up to what the files say, with every `look`.

    state: "starting", "running", "gone" (its process is no more, and it left no report), or what
    the report says: "done" or "failed".
    """

    def __init__(self, run_dir: Path) -> None:
        RunFiles(run_dir)
        self.run_dir = run_dir
        self.tally = Tally()
        self.state = "starting"
        self._read_to = 0

    def look(self) -> None:
        """Reads what is new."""
        over = (self.run_dir / "report.json").exists()
        self._read_metrics()
        found = read_status(self.run_dir)
        if found is not None:
            status, writer = found
            self.tally.add(status)
            self.state = "running" if _is_alive(writer) else "gone"
        if over:
            self.state = RunFiles(self.run_dir).report["status"]

    @property
    def is_over(self) -> bool:
        return self.state not in ("starting", "running")

    def snapshot(self) -> dict[str, Any]:
        """What is known now, for programs."""
        tally = self.tally
        last = tally.steps[-1] if tally.steps else None
        return {
            "run_dir": str(self.run_dir),
            "state": self.state,
            "wall_s": tally.wall_s,
            "steps": len(tally.steps),
            "of_steps": tally.started.steps if tally.started else None,
            "left_s": tally.left_s,
            "loss": tally.loss,
            "samples_per_s": tally.samples_per_s,
            "tokens_per_s": tally.tokens_per_s,
            "mfu": tally.mfu,
            "last_step": asdict(last) if last else None,
            "results": tally.results,
            "status": asdict(tally.status) if tally.status else None,
        }

    def _read_metrics(self) -> None:
        path = self.run_dir / "metrics.jsonl"
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._read_to)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read_to += len(whole)
        for line in whole.splitlines():
            told = json.loads(line)
            event = parse_event(told)
            if event is not None:
                self.tally.add(event)
                self.tally.mfu = told.get("rates", {}).get("mfu", {}).get("total", self.tally.mfu)


def _is_alive(writer: Mapping[str, Any]) -> bool:
    """Whether the process that writes the status still runs, as far as can be told."""
    if writer["host"] != socket.gethostname():
        return bool(time.time() - writer["written_s"] < SILENT_S)
    try:
        os.kill(writer["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
