"""The source at work: plans each round from lengths alone, then decodes in the plan's order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from flowengine.api import Lengths, Packer, Source
from flowengine.errors import RunError
from flowengine.runtime.emission import Header, prepare
from flowengine.runtime.round import Round, Stretch, stretches
from flowengine.runtime.site import Site
from flowengine.runtime.spans import Work
from flowengine.runtime.stage import Stage


@dataclass
class _Plan:
    """A round under way: its packs as (sample id, index in the source, lengths), and the next."""

    round: Round
    packs: list[list[tuple[int, int, Lengths | None]]]
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
        self._packer = packers[0] if packers else None
        every = stretches(site.graph, self._source)
        self._stretches: Iterator[Stretch] = islice(every, site.start.round, None)
        self._plan: _Plan | None = None
        self._exhausted = False
        self._left_out = site.start.left_out

    def open(self) -> None:
        self._source.open(self.context())
        if self._held_out is not self._source:
            self._held_out.open(self.context())
        if self._packer is not None:
            self._planner.open(replace(self.context(), stage=self._packer.name))

    def close(self) -> None:
        self._source.close()
        self._held_out.close()
        if self._packer is not None:
            self._planner.close()

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
        if self._packer is not None:
            self._planner.flush()
        self._plan = None
        return self.close_round()

    @property
    def _planner(self) -> Packer:
        """The packer, whose plans are made here: what is in them is known before it is read."""
        assert self._packer is not None
        assert isinstance(self._packer.what, Packer)
        return self._packer.what

    def _make_plan(self, stretch: Stretch) -> _Plan:
        source = self._held_out if stretch.held_out else self._source
        total = source.num_samples()
        sign = -1 if stretch.held_out else 1
        members = [
            (sample, index if total is None else index % total)
            for index in range(stretch.start, stretch.stop)
            if (sample := sign * index - stretch.held_out) not in self._left_out
        ]
        ids, places = [sample for sample, _ in members], [place for _, place in members]
        if self._packer is None:
            alone: list[list[tuple[int, int, Lengths | None]]]
            alone = [[(sample, place, None)] for sample, place in zip(ids, places, strict=True)]
            round_ = Round(stretch.number, stretch.step, stretch.held_out, len(ids), 0, ())
            return _Plan(round_, alone)
        self.take_in_hand(tuple(ids), Work("plan", stretch.step, stretch.held_out))
        lengths = [source.lengths(place) for place in places]
        packs = self._pack(lengths, ids)
        round_ = Round(
            number=stretch.number,
            step=stretch.step,
            held_out=stretch.held_out,
            samples=len(ids),
            targets=sum(length.targets for length in lengths),
            pack_sizes=tuple(len(pack) for pack in packs),
        )
        if not round_.targets and not round_.held_out:
            raise self.fail_row(
                f"step {round_.step} has {len(ids)} samples and not one target token, so it has "
                "no loss; expected labels other than -100 in at least one of them"
            )
        self._report_plan(round_, lengths)
        self._report_packs(round_, [[lengths[index] for index in pack] for pack in packs])
        return _Plan(round_, [[(ids[i], places[i], lengths[i]) for i in pack] for pack in packs])

    def _pack(self, lengths: list[Lengths], ids: list[int]) -> list[list[int]]:
        packer = self._planner
        for sample, length in zip(ids, lengths, strict=True):
            if length.tokens > packer.max_tokens:
                raise RunError(
                    f"{self._packer}: sample {sample} has {length.tokens} tokens, a pack holds "
                    f"{packer.max_tokens}; raise max_tokens="
                )
        alone = [i for i, sample in enumerate(ids) if sample in self.site.start.alone]
        others = [i for i in range(len(ids)) if i not in alone]
        packs = packer.plan([lengths[i] for i in others]) if others else []
        packs = [[i] for i in alone] + [[others[i] for i in pack] for pack in packs]
        if sorted(index for pack in packs for index in pack) != list(range(len(lengths))):
            raise RunError(
                f"{self._packer}: plan() must give every index below {len(lengths)} exactly once; "
                f"got {sum(map(len, packs))} indices in {len(packs)} packs"
            )
        return [pack for pack in packs if pack]

    def _report_plan(self, round_: Round, lengths: list[Lengths]) -> None:
        room = len(round_.pack_sizes) * self._planner.max_tokens
        tokens = sum(length.tokens for length in lengths)
        if not round_.held_out:
            self.site.notify(
                "plan",
                round_.step,
                round_.samples,
                tokens,
                round_.targets,
                len(round_.pack_sizes),
                tokens / room,
            )

    def _report_packs(self, round_: Round, packs: list[list[Lengths]]) -> None:
        planner, count = self._planner, len(packs)
        columns = {
            "step": [round_.step] * count,
            "held_out": [round_.held_out] * count,
            "pack": list(range(count)),
            "samples": [len(pack) for pack in packs],
            "tokens": [sum(length.tokens for length in pack) for pack in packs],
            "targets": [sum(length.targets for length in pack) for pack in packs],
            "room_tokens": [planner.max_tokens] * count,
            "cost": [planner.cost_of(pack) for pack in packs],
        }
        self.site.notify("packs", columns)

    def _emit_pack(self, plan: _Plan, index: int) -> bool:
        members = plan.packs[index]
        work = Work("read", plan.round.step, plan.round.held_out, index)
        source = self._held_out if plan.round.held_out else self._source
        pack = index if plan.round.pack_sizes else -1
        values = []
        for place, (sample, at, lengths) in enumerate(members):
            self.take_in_hand((sample,), work)
            value = source.read(at)
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
