"""Exceptions that do not travel well."""

from __future__ import annotations

import sys
import threading
from typing import Any

from fakes import MixedSamples
from fakes_faulty import BAD

from flowengine.api import Sample


class UnpicklableError(Exception):
    """Holds a lock, and needs two arguments."""

    def __init__(self, text: str, lock: Any) -> None:
        super().__init__(text)
        self.lock = lock


class SpeechlessError(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Unruly(MixedSamples):
    """Raises on sample BAD what `kind` says."""

    kind: str = ""

    def read(self, index: int) -> Sample:
        if index != BAD:
            return super().read(index)
        if self.kind == "unpicklable":
            raise UnpicklableError("holds a lock", threading.Lock())
        if self.kind == "speechless":
            raise SpeechlessError
        if self.kind == "surrogate":
            raise OSError("no file a\udcff.png")
        if self.kind == "exit":
            sys.exit(3)
        raise ValueError("x" * 1_000_000)
