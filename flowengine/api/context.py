"""What an operator learns about the run when it is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Reported = str | int | float | dict[str, "Reported"] | list["Reported"] | None


@dataclass(frozen=True)
class Context:
    """Given to `Operator.open`.

    seed: the run's seed. run_dir: where files may be written.
    report: `report(name, value)` puts a JSON value into the run's report under results.
    """

    stage: str
    replica: int
    num_replicas: int
    seed: int
    run_dir: Path
    report: Callable[[str, Reported], None]
