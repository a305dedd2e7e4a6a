"""The source at work: plans each round from lengths alone, then decodes in the plan's order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from flowengine.api import Encoder, Lengths, Packer, Source
from flowengine.runtime.emission import Header, prepare
from flowengine.runtime.intake import Intake, Member
from flowengine.runtime.planner import Planner, pack_columns
from flowengine.runtime.plans import COEFFICIENTS, Plans
from flowengine.runtime.round import Round, Stretch, num_steps, stretches
from flowengine.runtime.site import Site
from flowengine.runtime.spans import Work
from flowengine.runtime.stage import Stage


@dataclass
class _Plan:
    """A round under way: its packs, and the next."""

    round: Round
    packs: list[list[Member]]
    next: int = 0


class SourceStage(Stage):
    """Emits pack after pack where the graph has a packer, else sample after sample."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        assert isinstance(self.spec.what, Source)
        self._source: Source[Any] = self.spec.what
        held_out = [evaluation.source for evaluation in site.graph.evaluations]
        self._held_out = held_out[0] if held_out else self._source
        packers = [s for s in site.graph.stages if isinstance(s.what, Packer)]
        self._planner = (
            Planner(packers[0], alone=site.start.alone, leave_out=self._leave_out)
            if packers
            else None
        )
        every = stretches(site.graph, self._source)
        self._stretches: Iterator[Stretch] = islice(every, site.start.round, None)
        self._plan: _Plan | None = None
        self._exhausted = False
        self._last_step = num_steps(site.graph, self._source) - 1
        self._plans = Plans(site.start.plans)
        self._deferred = self._plans.deferred
        self._newest_cost: list[float] | None = None
        self._left_out = set(site.start.left_out)
        self._intake = Intake(
            self.spec,
            letters=site.start.dead_letters,
            leave_out=lambda sample, reason: self._leave_out(sample, self.spec.name, reason),
        )

    def open(self) -> None:
        self._source.open(self.context())
        if self._held_out is not self._source:
            self._held_out.open(self.context())
        if self._planner is not None:
            self._planner.packer.open(replace(self.context(), stage=self._planner.name))

    def close(self) -> None:
        self._source.close()
        self._held_out.close()
        if self._planner is not None:
            self._planner.packer.close()

    def on_notice(self, subject: str, fields: list[Any]) -> None:
        assert subject == "cost", f"unknown notice {subject}"
        self._newest_cost = fields[1:]

    def work(self) -> bool:
        if self._exhausted:
            return False
        if self._plan is None:
            return self._begin_round()
        if self._plan.next == len(self._plan.packs):
            return self._end_round(self._plan)
        plan, self._plan.next = self._plan, self._plan.next + 1
        return self._emit_pack(plan, plan.next - 1)

    def _begin_round(self) -> bool:
        stretch = None if self.finishing else next(self._stretches, None)
        if stretch is None:
            self._exhausted = True
            return True
        self._plan = self._make_plan(stretch)
        self.rounds[stretch.number] = self._plan.round
        self.open_round(self._plan.round)
        return True

    def _end_round(self, plan: _Plan) -> bool:
        (self._held_out if plan.round.held_out else self._source).flush()
        if self._planner is not None:
            self._planner.packer.flush()
        self._plan = None
        return self.close_round()

    def _make_plan(self, stretch: Stretch) -> _Plan:
        members = self._measure(stretch)
        planner = self._planner
        if planner is None:
            round_ = Round(stretch.number, stretch.step, stretch.held_out, len(members), 0, ())
            return _Plan(round_, [[member] for member in members])
        if not stretch.held_out:
            members = self._settle_basis(stretch, planner, members)
        packs = planner.plan(members)
        lengths = [[m.lengths for m in pack if m.lengths is not None] for pack in packs]
        round_ = Round(
            number=stretch.number,
            step=stretch.step,
            held_out=stretch.held_out,
            samples=sum(len(pack) for pack in packs),
            targets=sum(length.targets for pack in lengths for length in pack),
            pack_sizes=tuple(len(pack) for pack in packs),
        )
        if not round_.targets and not round_.held_out:
            raise self.fail_row(
                f"step {round_.step} has {round_.samples} samples and not one target token, so it "
                "has no loss; expected labels other than -100 in at least one of them"
            )
        self._check_slots(round_)
        ids = [[member.sample for member in pack] for pack in packs]
        self._report(round_, lengths, ids, planner.packer)
        return _Plan(round_, packs)

    def _check_slots(self, round_: Round) -> None:
        """An encoder's data ranks begin a slot of packs together, so their rows wait for each other
        in front of the packer."""
        for stage in self.site.graph.stages:
            ways = stage.gang.data if isinstance(stage.what, Encoder) else 1
            starts = range(0, len(round_.pack_sizes), ways)
            most = max((sum(round_.pack_sizes[at : at + ways]) for at in starts), default=0)
            for edge in self.site.edges:
                bound = edge.outlets[0].bound_items
                if ways > 1 and edge.reader != stage.name and most > bound:
                    raise self.fail_row(
                        f"the data ranks of '{stage.name}' take {ways} packs at once, of {most} "
                        f"samples in step {round_.step}; the channel to '{edge.reader}' holds "
                        f"{bound} rows, raise its credits=Credits(items=)"
                    )

    def _measure(self, stretch: Stretch) -> list[Member]:
        """The round's samples, without those that are bad."""
        source = self._held_out if stretch.held_out else self._source
        work, found = Work("plan", stretch.step, stretch.held_out), []
        for member in self._members(stretch):
            self.take_in_hand((member.sample,), work)
            measured = self._intake.measure(source, member, planned=self._planner is not None)
            if measured is not None:
                found.append(measured)
        return found

    def _settle_basis(
        self, stretch: Stretch, planner: Planner, members: list[Member]
    ) -> list[Member]:
        """The members without those that the next step shall have; from here on the packer counts
        with the cost of this step. Both are told to the coordinator where they are used."""
        cost = None
        if planner.packer.learns_cost():
            cost = self._plans.cost_of(stretch.step, self._newest_cost)
            if cost is not None:
                planner.packer.learn_cost(**dict(zip(COEFFICIENTS, cost, strict=True)))
        before, self._deferred = frozenset(self._deferred), ()
        if stretch.step < self._last_step:
            may = {member.sample for member in members} - before
            self._deferred = tuple(m.sample for m in planner.defer(members, may=may))
        if cost is not None or self._deferred:
            self.site.notify("basis", stretch.step, cost, list(self._deferred))
        return [member for member in members if member.sample not in self._deferred]

    def _members(self, stretch: Stretch) -> list[Member]:
        """The round's samples but the dead letters, not yet measured. A held-out sample's id is
        below 0."""
        source = self._held_out if stretch.held_out else self._source
        total = source.num_samples()
        found = []
        before = () if stretch.held_out else self._deferred
        for index in (*before, *range(stretch.start, stretch.stop)):
            sample = -1 - index if stretch.held_out else index
            if sample not in self._left_out:
                found.append(Member(sample, index if total is None else index % total, None))
        return found

    def _leave_out(self, sample: int, stage: str, reason: str) -> None:
        self._left_out.add(sample)
        self.site.notify("left_out", sample, stage, reason)

    def _report(
        self, round_: Round, packs: list[list[Lengths]], ids: list[list[int]], packer: Packer
    ) -> None:
        """Tells the coordinator of the round's packs, or what a packer of its own needs to know."""
        tokens = sum(length.tokens for pack in packs for length in pack)
        is_ready = packer.when == "ready"
        if not round_.held_out:
            count = None if is_ready else len(packs)
            fill = None if count is None else tokens / (count * packer.max_tokens)
            of_step = (round_.samples, tokens, round_.targets, count, fill)
            self.site.notify("plan", round_.step, *of_step)
        if is_ready:
            each = zip(chain(*ids), chain(*packs), strict=True)
            self.site.notify("lengths", round_.number, [[s, *_fields(found)] for s, found in each])
        else:
            columns = pack_columns(round_.step, round_.held_out, packs, ids, packer)
            self.site.notify("packs", columns)

    def _emit_pack(self, plan: _Plan, index: int) -> bool:
        members = plan.packs[index]
        work = Work("read", plan.round.step, plan.round.held_out, index)
        source = self._held_out if plan.round.held_out else self._source
        pack = index if plan.round.pack_sizes else -1
        values = []
        for place, member in enumerate(members):
            sample, _, lengths = member
            self.take_in_hand((sample,), work)
            value = self._intake.read(source, member)
            if lengths is not None:
                self._check_lengths(sample, value, lengths)
            known = (lengths.tokens, lengths.media) if lengths is not None else ()
            values.append((Header(plan.round, sample, pack, place, *known), value))
        return self.emit(prepare(self.site, self.site.edges, values))

    def _check_lengths(self, sample: int, value: Any, lengths: Lengths) -> None:
        targets = int((value.labels != -100).sum())
        found = (len(value.tokens), len(value.labels), targets)
        wanted = (lengths.tokens, lengths.tokens, lengths.targets)
        if found != wanted:
            raise self.fail_row(
                f"sample {sample} has (tokens, labels, targets) = {found}, but its lengths said "
                f"{wanted}; lengths(i) and read(i) must agree"
            )
        if len(value.labels) and int(value.labels[0]) != -100:
            raise self.fail_row(
                f"sample {sample} has the target {int(value.labels[0])} at its first token, which "
                "nothing can predict; expected the label -100 there"
            )


def _fields(lengths: Lengths) -> list[Any]:
    """As a message carries them."""
    return [lengths.tokens, lengths.targets, dict(lengths.media), dict(lengths.sizes)]
