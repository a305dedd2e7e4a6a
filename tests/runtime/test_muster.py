"""The ranks of a gang do the same things in the same order, whoever is ready first."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest

from flowengine.channel import Message
from flowengine.runtime.muster import Muster, Order


class Ranks:
    """The musters of a gang whose workers are 10, 11, ..., and the mail between them."""

    def __init__(self, size: int) -> None:
        self.mail: dict[tuple[int, int], deque[Message]] = {}
        workers = range(10, 10 + size)
        self.musters = [Muster(workers, rank, self._post_of(rank)) for rank in range(size)]

    def _post_of(self, rank: int) -> Any:
        def post(to: int, message: Message) -> None:
            self.mail.setdefault((10 + rank, to), deque()).append(message)

        return post

    def deliver(self, sender: int, to: int) -> None:
        _, *fields = self.mail[sender, to].popleft()
        self.musters[to - 10].on_message(sender, fields)

    def deliver_all(self) -> None:
        for (sender, to), letters in list(self.mail.items()):
            while letters:
                self.deliver(sender, to)


def test_alone_a_rank_does_what_it_prefers() -> None:
    """Without others there is nobody to wait for."""
    (muster,) = Ranks(1).musters
    assert muster.agree(["backward", "forward"]) == Order("backward", (True,))
    assert muster.agree([]) is None


def test_nothing_is_done_until_all_are_able() -> None:
    """The order comes when the last rank is able, and says who has a pack of its own."""
    ranks = Ranks(3)
    assert ranks.musters[0].agree(["forward"]) is None
    assert ranks.musters[1].agree(["forward"], filled=False) is None
    ranks.deliver_all()
    assert ranks.musters[0].agree(["forward"]) is None
    assert ranks.musters[2].agree(["forward"]) is None
    ranks.deliver_all()
    order = Order("forward", (True, False, True))
    assert ranks.musters[0].agree(["forward"]) == order
    ranks.deliver_all()
    assert [m.agree(["forward"], filled=False) for m in ranks.musters[1:]] == [order, order]


def test_rank_0_prefers_among_what_all_are_able_to_do() -> None:
    """What rank 0 likes best but others cannot do yet waits."""
    ranks = Ranks(2)
    ranks.musters[1].agree(["forward"])
    ranks.deliver_all()
    found = ranks.musters[0].agree(["backward", "forward"])
    assert found is not None
    assert found.action == "forward"


def test_an_order_waits_for_the_call_that_can_obey_it() -> None:
    """An order to end is not taken by who asks what to work on."""
    ranks = Ranks(2)
    ranks.musters[1].agree(["end"])
    ranks.deliver_all()
    ranks.musters[0].agree(["end"])
    ranks.deliver_all()
    assert ranks.musters[1].agree(["forward"]) is None
    assert ranks.musters[1].agree(["end"]) == Order("end", (True, True))


@pytest.mark.parametrize("seed", range(20))
def test_all_ranks_act_in_one_order(seed: int) -> None:
    """Whatever the timing, each rank's actions are the same sequence and none is left undone."""
    rng, ranks, most = random.Random(seed), Ranks(3), 6
    done: list[list[str]] = [[], [], []]

    def able(rank: int) -> Sequence[str]:
        forward, backward = (done[rank].count(name) for name in ("forward", "backward"))
        names = ["forward"] if forward < most and forward - backward < 3 else []
        names += ["backward"] if backward < forward else []
        return rng.sample(names, len(names))

    for _ in range(10_000):
        waiting = [ends for ends, letters in ranks.mail.items() if letters]
        if waiting and rng.random() < 0.5:
            ranks.deliver(*rng.choice(waiting))
        else:
            rank = rng.randrange(3)
            order = ranks.musters[rank].agree(able(rank))
            done[rank] += [order.action] if order is not None else []
        if all(len(actions) == 2 * most for actions in done):
            break
    assert done[0].count("backward") == most
    assert done[0] == done[1] == done[2]
