"""An observer in a thread of its own, so that however slow it is, the run is not.

Rules.
- The run's thread only leaves mail, and never waits.
- Of looks at the stages the newest alone is kept; of other mail at most MAIL, the oldest lost.
- At the end the thread has CLOSE_S to deal with what is left; a hung one is left behind.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import AbstractContextManager
from typing import Protocol

from flowengine.runtime.events import CatalogueRows, Event, PackRows, SpanRows, Status

MAIL = 4096
CLOSE_S = 5.0


class View(Protocol):
    """What is shown in the thread: entered and left there as well."""

    def __enter__(self) -> View: ...

    def __exit__(self, *_: object) -> None: ...

    def __call__(self, event: Event) -> None: ...


class Aside(AbstractContextManager["Aside"]):
    """Passes events on to `view` in a thread, which ends with the context. Rows of tables, which
    no view shows, are not passed on."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._mail: deque[Event] = deque(maxlen=MAIL)
        self._status: Status | None = None
        self._over = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="view", daemon=True)

    def __enter__(self) -> Aside:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._wake:
            self._over = True
            self._wake.notify()
        self._thread.join(CLOSE_S)

    def __call__(self, event: Event) -> None:
        if isinstance(event, CatalogueRows | SpanRows | PackRows):
            return
        with self._wake:
            if isinstance(event, Status):
                self._status = event
            else:
                self._mail.append(event)
            self._wake.notify()

    def _run(self) -> None:
        with self._view as view:
            while (event := self._next()) is not None:
                view(event)

    def _next(self) -> Event | None:
        with self._wake:
            self._wake.wait_for(lambda: self._mail or self._status or self._over)
            if self._mail:
                return self._mail.popleft()
            status, self._status = self._status, None
            return status
