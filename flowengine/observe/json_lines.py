"""A run as JSON lines on a stream, for programs: every event worth keeping, the report last.

The last line is {"event": "done" or "failed", "report": {...}}; the other lines are described in
flowengine.observe.event_json. A reader that goes away does not end the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TextIO

from flowengine.observe.event_json import dump_json, event_json
from flowengine.runtime.events import Event


class JsonLines:
    """An observer that writes one line per event to `stream`, flushed as it happens."""

    def __init__(self, stream: TextIO) -> None:
        self._stream: TextIO | None = stream

    def __call__(self, event: Event) -> None:
        line = event_json(event)
        if line is not None:
            self._write(line)

    def finish(self, report: Mapping[str, Any]) -> None:
        """Writes the last line: the run's report."""
        self._write(dump_json({"event": report["status"], "report": report}))

    def _write(self, line: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            self._stream = None
