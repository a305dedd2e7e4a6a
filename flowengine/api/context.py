"""What an operator learns about the run when it is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Reported = str | int | float | dict[str, "Reported"] | list["Reported"] | None


@dataclass(frozen=True)
class Context:
    """Given to `Operator.open`.

    replica, num_replicas: which of the stage's packs this worker sees, every num_replicas-th; the
        ranks of a gang that work on the same packs have the same.
    mesh: of the gang that runs the stage, with the dimensions "data" and "tensor"; None without.
    seed: the run's seed. run_dir: where files may be written.
    report: `report(name, value)` puts a JSON value into the run's report under results.
    """

    stage: str
    replica: int
    num_replicas: int
    seed: int
    run_dir: Path
    report: Callable[[str, Reported], None]
    mesh: DeviceMesh | None = None
