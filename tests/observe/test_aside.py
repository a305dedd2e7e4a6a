"""A view in a thread of its own: what it is shown, and that it cannot hold up the run."""

from __future__ import annotations

import threading

import pytest

from flowengine.observe import aside as aside_module
from flowengine.observe.aside import MAIL, Aside
from flowengine.runtime.events import CatalogueRows, Event, PoolStatus, Reported, Status


class Listener:
    """Notes what it is shown, once it is let."""

    def __init__(self, *, waits: bool = False) -> None:
        self.seen: list[Event] = []
        self.began, self.may = threading.Event(), threading.Event()
        self.left = False
        if not waits:
            self.may.set()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.left = True

    def __call__(self, event: Event) -> None:
        self.began.set()
        self.may.wait(5)
        self.seen.append(event)


def report(number: int) -> Reported:
    return Reported("a", number, 1.0, "x", number)


def look(wall_s: float) -> Status:
    return Status(wall_s, (), PoolStatus(0, 0, 1))


def test_everything_is_shown_in_order() -> None:
    """All events but rows of tables are shown, and the view is left at the end."""
    listener = Listener()
    with Aside(listener) as aside:
        for number in range(100):
            aside(report(number))
        aside(CatalogueRows({}))
    assert listener.seen == [report(number) for number in range(100)]
    assert listener.left


def test_a_slow_view_loses_looks() -> None:
    """While a view is busy, new looks replace older ones, and the oldest mail is lost."""
    listener = Listener(waits=True)
    with Aside(listener) as aside:
        aside(report(-1))
        assert listener.began.wait(5)
        for number in range(MAIL + 2):
            aside(report(number))
            aside(look(float(number)))
        listener.may.set()
    assert listener.seen[:2] == [report(-1), report(2)]
    assert len(listener.seen) == 1 + MAIL + 1
    assert listener.seen[-1] == look(MAIL + 1.0)


def test_a_view_that_hangs_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view that never comes back does not keep the run from its end."""
    monkeypatch.setattr(aside_module, "CLOSE_S", 0.01)
    listener = Listener(waits=True)
    with Aside(listener) as aside:
        aside(report(1))
        assert listener.began.wait(5)
    assert not listener.left
    listener.may.set()
