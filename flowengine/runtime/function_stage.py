"""A plain operator or function at work: one value in, at most one out per port.

Several streams on one port are merged; several ports are joined by sample id. Rounds do not mix:
rows of a later round wait until the current one is closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from flowengine.api import Operator, Ports
from flowengine.channel import Inlet, Row, restore
from flowengine.checkpoint import Part
from flowengine.runtime.emission import Emission, Header, prepare
from flowengine.runtime.round import Round
from flowengine.runtime.saver import Saver, has_state, part_name
from flowengine.runtime.site import Site
from flowengine.runtime.spans import Work
from flowengine.runtime.stage import Stage

ROWS_AT_ONCE = 64
"""Rows per piece of work: enough that looking at the sockets in between costs little."""


class FunctionStage(Stage):
    """Runs `process` (or the function) on row after row."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._operator = self.spec.what if isinstance(self.spec.what, Operator) else None
        self._process: Callable[..., Any] = (
            self._operator.process if self._operator is not None else self.spec.what  # type: ignore[attr-defined, assignment]
        )
        self._ports = list(self.spec.signature.inputs)
        self._kinds = {
            inlet.channel: site.topology.sent_type(inlet.channel) for inlet in site.inlets
        }
        self._parts: dict[int, dict[str, tuple[Inlet, Row]]] = {}
        self._ready: deque[dict[str, tuple[Inlet, Row]]] = deque()
        self._unsent: deque[Emission] = deque()
        self._saver = Saver(site) if has_state(self._operator) else None
        self._steps_done = site.start.step

    def open(self) -> None:
        if self._operator is not None:
            self._operator.open(self.context())
        if self._saver is not None and self.site.start.checkpoint is not None:
            self._load_state(self.site.start.checkpoint)

    def close(self) -> None:
        if self._operator is not None:
            self._operator.close()
        if self._saver is not None:
            self._saver.close()

    def work(self) -> bool:
        self._collect()
        moved = 0
        while moved < ROWS_AT_ONCE and self.pending is None and self._do_next():
            moved += 1
        if moved:
            return True
        if self.current in self.rounds and self.is_closed():
            self._check_joined()
            if self._operator is not None:
                self._operator.flush()
            self._pass_barrier(self.rounds[self.current])
            return self.close_round()
        return self.wait("starved", f"rows from {self._missing()}")

    def end(self) -> str:
        if self._saver is not None:
            if self._saver.is_due_at_end(self._steps_done, finishing=self.finishing):
                self._save_state()
            self._saver.close()
        return ""

    def _pass_barrier(self, round_: Round) -> None:
        if not round_.held_out:
            self._steps_done = round_.step + 1
            if self._saver is not None:
                self._saver.look()
                if self._saver.is_due(self._steps_done):
                    self._save_state()

    def _save_state(self) -> None:
        assert self._saver is not None
        assert self._operator is not None
        state = self._operator.state()
        tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
        values = {name: value for name, value in state.items() if name not in tensors}
        self._saver.save(self._steps_done, Part(tensors, values))

    def _load_state(self, checkpoint: Path) -> None:
        assert self._operator is not None
        part = self.site.parts.read(checkpoint, part_name(self.site.worker))
        self._operator.load_state({**part.values, **part.tensors})

    def _do_next(self) -> bool:
        if self._unsent:
            return self.emit(self._unsent.popleft())
        return bool(self._ready) and self._run(self._ready.popleft())

    def _collect(self) -> None:
        for inlet in self.site.inlets:
            while inlet.rows and inlet.rows[0].number == self.current:
                row = inlet.rows.popleft()
                parts = self._parts.setdefault(row.sample, {})
                if inlet.port in parts:
                    raise self.fail_row(
                        f"sample {row.sample} reached port '{inlet.port}' twice; ports are joined "
                        "by sample id, so one stream alone may bring a sample to each of them"
                    )
                parts[inlet.port] = (inlet, row)
                if len(parts) == len(self._ports):
                    self._ready.append(self._parts.pop(row.sample))

    def _run(self, parts: dict[str, tuple[Inlet, Row]]) -> bool:
        _, first = parts[self._ports[0]]
        round_ = self.rounds[self.current]
        self.take_in_hand(
            (first.sample,), Work("process", round_.step, round_.held_out, first.pack)
        )
        result = self._process(*(self._value(*parts[port]) for port in self._ports))
        for inlet, row in parts.values():
            inlet.give_back([row])
        header = Header.of(first, self.rounds[self.current])
        self._unsent.extend(self._emissions(header, result))
        return True

    def _value(self, inlet: Inlet, row: Row) -> Any:
        return restore(self._kinds[inlet.channel], row.tree, self.load)

    def _emissions(self, header: Header, result: Any) -> list[Emission]:
        outputs = {"out": result}
        if isinstance(result, Ports):
            outputs = {port: getattr(result, port) for port in self.spec.signature.outputs}
        emissions = []
        for port, value in outputs.items():
            edges = [edge for edge in self.site.edges if edge.output == port]
            if value is not None and edges:
                emissions.append(prepare(self.site, edges, [(header, value)]))
        return emissions

    def _check_joined(self) -> None:
        for sample, parts in self._parts.items():
            missing = [port for port in self._ports if port not in parts]
            raise self.fail_row(
                f"sample {sample} reached port '{next(iter(parts))}' but not {missing}; ports are "
                "joined by sample id, so every sample must reach all of them"
            )

    def _missing(self) -> str:
        workers = self.site.topology.workers
        return ", ".join(
            sorted({workers[i.producer].label for i in self.site.inlets if not i.ended})
        )
