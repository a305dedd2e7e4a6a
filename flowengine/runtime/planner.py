"""Which samples form which packs of a round, from their lengths alone; and which are left out."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

from flowengine.api import Lengths, Packer
from flowengine.errors import RunError
from flowengine.graph.description import StageSpec
from flowengine.runtime.intake import Member
from flowengine.schedule import TooLongError


class Planner:
    """Asks a stage's packer, and holds its answer to the rules.

    alone: samples that get packs of their own. leave_out: told of every sample that the packer's
    policy makes a dead letter, with the packer's name and the reason.
    """

    def __init__(
        self,
        stage: StageSpec,
        *,
        alone: frozenset[int],
        leave_out: Callable[[int, str, str], None],
    ) -> None:
        assert isinstance(stage.what, Packer)
        self.name = stage.name
        self.packer = stage.what
        self._stage = stage
        self._alone = alone
        self._leave_out = leave_out

    def defer(self, members: list[Member], *, may: Set[int]) -> list[Member]:
        """Those of these samples, which may be deferred, that the next step shall have."""
        lengths = [member.lengths for member in members if member.lengths is not None]
        allowed = [m.sample in may and m.sample not in self._alone for m in members]
        chosen = self.packer.defer(lengths, may=allowed)
        if not all(0 <= index < len(members) and allowed[index] for index in chosen):
            raise RunError(
                f"{self._stage}: defer() gave {chosen}; expected indices of samples that may be "
                "deferred"
            )
        return [members[index] for index in sorted(set(chosen))]

    def plan(self, members: list[Member]) -> list[list[Member]]:
        """The packs, none of them empty. RunError for a sample too long, unless the policy says
        otherwise."""
        fitting = [member for member in members if self._fits(member)]
        alone = [[member] for member in fitting if member.sample in self._alone]
        return alone + self._ask([m for m in fitting if m.sample not in self._alone])

    def _fits(self, member: Member) -> bool:
        assert member.lengths is not None
        tokens, most = member.lengths.tokens, self.packer.max_tokens
        if tokens <= most or self.packer.too_long == "own-pack":
            return True
        told = f"sample {member.sample} has {tokens} tokens, a pack holds {most}"
        self._refuse(member, told, remedy="max_tokens=")
        return False

    def _ask(self, members: list[Member]) -> list[list[Member]]:
        while members:
            try:
                packs = self.packer.plan([m.lengths for m in members if m.lengths is not None])
            except TooLongError as error:
                member = members.pop(error.position)
                told = f"sample {member.sample} has {error.size} {error.unit}, "
                self._refuse(member, f"{told}a pack holds {error.limit}", remedy=error.remedy)
                continue
            self._check(packs, len(members))
            return [[members[index] for index in pack] for pack in packs if pack]
        return []

    def _refuse(self, member: Member, told: str, *, remedy: str) -> None:
        if self.packer.too_long == "error":
            raise RunError(
                f'{self._stage}: {told}; raise {remedy} or set too_long="own-pack" or "dead-letter"'
            )
        self._leave_out(member.sample, self.name, told)

    def _check(self, packs: list[list[int]], count: int) -> None:
        if sorted(index for pack in packs for index in pack) != list(range(count)):
            raise RunError(
                f"{self._stage}: plan() must give every index below {count} exactly once; got "
                f"{sum(map(len, packs))} indices in {len(packs)} packs"
            )


def pack_columns(
    step: int,
    held_out: bool,
    packs: list[list[Lengths]],
    ids: list[list[int]],
    packer: Packer,
) -> dict[str, list[Any]]:
    """The rows of flowengine.observe.tables.PACKS for a round's packs."""
    count = len(packs)
    return {
        "step": [step] * count,
        "held_out": [held_out] * count,
        "pack": list(range(count)),
        "samples": [len(pack) for pack in packs],
        "tokens": [sum(length.tokens for length in pack) for pack in packs],
        "targets": [sum(length.targets for length in pack) for pack in packs],
        "room_tokens": [packer.max_tokens] * count,
        "cost": [packer.cost_of(pack) for pack in packs],
        "sample_ids": ids,
    }
