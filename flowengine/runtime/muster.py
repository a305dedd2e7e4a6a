"""How the ranks of a gang agree on what to do next, so that all of them enter the same collectives.

Rules.
- A rank says what it is able to do. Once able it stays able until it has done it.
- Rank 0 picks an action that every rank is able to do, tells the others, and does it; they do what
  they are told, in that order. So a collective is entered only when nobody has to be waited for,
  and a rank that waits, for samples or for room, still takes in messages meanwhile.
- A rank says with its ability whether it is filled: has a pack of its own to work on. The order
  tells everybody who is.
- A stage without a gang is rank 0 of one: what it is able to do it does.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flowengine.channel import Kind, Post


@dataclass(frozen=True)
class Order:
    """What all ranks do now. filled: by rank, what each said with its ability."""

    action: str
    filled: tuple[bool, ...]


class Muster:
    """One rank's side. workers: the gang's, rank by rank; rank: this one's."""

    def __init__(self, workers: Sequence[int], rank: int, post: Post) -> None:
        self._workers = list(workers)
        self._rank = rank
        self._post = post
        self._able: dict[str, dict[int, bool]] = defaultdict(dict)
        self._said: set[str] = set()
        self._orders: deque[Order] = deque()

    @property
    def is_alone(self) -> bool:
        """Whether there are no others."""
        return len(self._workers) == 1

    def agree(self, able: Sequence[str], *, filled: bool = True) -> Order | None:
        """What to do of these actions, the preferred first; None if the others are not all able."""
        if self._rank:
            return self._follow(able, filled)
        for action in able:
            self._able[action][0] = filled
        for action in able:
            found = self._able[action]
            if len(found) == len(self._workers):
                return self._give(Order(action, tuple(found[r] for r in range(len(found)))))
        return None

    def on_message(self, sender: int, fields: Sequence[Any]) -> None:
        """Another rank's ability, or rank 0's order."""
        action, told = fields
        if self._rank:
            self._orders.append(Order(action, tuple(told)))
        else:
            self._able[action][self._workers.index(sender)] = told

    def _give(self, order: Order) -> Order:
        del self._able[order.action]
        for worker in self._workers[1:]:
            self._post(worker, (Kind.GANG, order.action, list(order.filled)))
        return order

    def _follow(self, able: Sequence[str], filled: bool) -> Order | None:
        for action in able:
            if action not in self._said:
                self._said.add(action)
                self._post(self._workers[0], (Kind.GANG, action, filled))
        if not self._orders or self._orders[0].action not in able:
            return None
        order = self._orders.popleft()
        self._said.remove(order.action)
        return order
