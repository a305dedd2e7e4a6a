"""flowengine pack: packs a data set's samples, and writes which sample is in which pack."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from flowengine.schedule import Cost, TooLong

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
POLICIES = ("error", "own-pack", "dead-letter")


@click.command()
@click.argument("dataset", type=FILE, metavar="DATASET")
@click.option("--max-tokens", type=click.IntRange(min=1), required=True, help="Most per pack.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The plan.")
@click.option("--column", default="tokens", show_default=True, help="Lengths, or lists of tokens.")
@click.option("--too-long", type=click.Choice(POLICIES), default="error", show_default=True)
@click.option("--replicas", type=click.IntRange(min=1), help="Put packs of like cost into slots.")
@click.option(
    "--quadratic",
    type=click.FloatRange(min=0),
    help="Cost of a token times a token of its sample; a token itself costs 1.",
)
@click.option(
    "--cost-of",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A run directory: costs are the seconds that its packs were measured to take.",
)
@click.option(
    "--microbatches",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Packs that a replica trains per step; for the report.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as a JSON object.")
def pack(
    dataset: Path,
    max_tokens: int,
    output: Path,
    column: str,
    too_long: str,
    replicas: int | None,
    quadratic: float | None,
    cost_of: Path | None,
    microbatches: int,
    as_json: bool,
) -> None:
    """Pack the samples of DATASET (parquet or Arrow) into few packs of at most --max-tokens.

    Writes a parquet file with a row per sample: its row number in DATASET (sample) and its pack;
    with --replicas, also the microbatch slot and the replica that trains it.
    """
    from flowengine.schedule import TooLongError, warm
    from flowengine.schedule import pack as pack_lengths

    cost = _cost(quadratic, cost_of)
    lengths = _lengths(dataset, column)
    warm()
    start = time.perf_counter()
    try:
        ids, offsets = pack_lengths(
            lengths, max_tokens=max_tokens, too_long=cast("TooLong", too_long)
        )
    except TooLongError as error:
        text = f"row {error.position} has {error.size} tokens, a pack holds {error.limit}"
        raise click.BadParameter(
            f"{text}; raise it, or add --too-long own-pack or dead-letter",
            param_hint="--max-tokens",
        ) from None
    seconds = time.perf_counter() - start
    costs = _pack_costs(lengths, ids, offsets, cost)
    placed = _place(ids, offsets, costs, replicas or 1)
    _write(output, ids, offsets, placed if replicas else None)
    report = _report(lengths, ids, offsets, costs, max_tokens, replicas, seconds)
    report["step"] = _step_times(costs, placed[0], microbatches)
    report["step"]["unit"] = "s" if cost_of else "cost"
    click.echo(json.dumps(report) if as_json else _describe(report, output))


def _cost(quadratic: float | None, cost_of: Path | None) -> Cost:
    """What a sample costs: in tokens, or in seconds as a run has measured them."""
    from flowengine.observe.run_files import RunFiles
    from flowengine.schedule import Cost

    if cost_of is None:
        return Cost(quadratic=quadratic or 0.0)
    if quadratic is not None:
        raise click.BadParameter("is measured; remove it, or --cost-of", param_hint="--quadratic")
    last = RunFiles(cost_of).report["cost"]["last"]
    if last is None:
        raise click.BadParameter(
            f"{cost_of}: too few packs were trained to measure their cost", param_hint="--cost-of"
        )
    return Cost(linear=last["linear"], quadratic=last["quadratic"], constant=last["constant"])


def _lengths(dataset: Path, column: str) -> NDArray[np.integer]:
    """The column's lengths: integers [n], at least 0."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    table = _read(dataset, column)
    values = table.column(column)
    if values.null_count:
        row = pc.index(pc.is_null(values), True).as_py()
        raise click.BadParameter(
            f"row {row} of '{column}' is null; expected a length in every row", param_hint="DATASET"
        )
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        values = pc.list_value_length(values)
    if not pa.types.is_integer(values.type):
        raise click.BadParameter(
            f"'{column}' is {values.type}; expected integers or lists", param_hint="--column"
        )
    lengths: NDArray[np.integer] = values.to_numpy()
    if len(lengths) and int(lengths.min()) < 0:
        row = int(np.argmin(lengths))
        raise click.BadParameter(
            f"row {row} of '{column}' is {lengths[row]}; expected 0 or more", param_hint="DATASET"
        )
    return lengths


def _read(dataset: Path, column: str) -> pa.Table:
    """The file with this column, and where possible without others."""
    import pyarrow as pa
    from pyarrow import feather, ipc, parquet

    try:
        if dataset.suffix == ".parquet":
            names = parquet.read_schema(dataset).names
            table = parquet.read_table(dataset, columns=[column] if column in names else names[:0])
        else:
            with pa.memory_map(str(dataset)) as source:
                is_file = source.read(6) == b"ARROW1"
                source.seek(0)
                table = (
                    feather.read_table(source) if is_file else ipc.open_stream(source).read_all()
                )
            names = table.column_names
    except pa.ArrowInvalid as error:
        raise click.BadParameter(f"{dataset}: {error}", param_hint="DATASET") from None
    if column not in names:
        raise click.BadParameter(
            f"{dataset.name} has no column '{column}'; it has {', '.join(names)}",
            param_hint="--column",
        )
    return table


def _pack_costs(
    lengths: NDArray[np.integer],
    ids: NDArray[np.int64],
    offsets: NDArray[np.int64],
    cost: Cost,
) -> NDArray[np.float64]:
    import numpy as np

    tokens = lengths[ids].astype(np.float64)
    if len(tokens) == 0:
        return np.empty(0)
    costs = cost.constant + tokens * (cost.linear + cost.quadratic * tokens)
    return np.add.reduceat(costs, offsets[:-1])


def _place(
    ids: NDArray[np.int64],
    offsets: NDArray[np.int64],
    costs: NDArray[np.float64],
    replicas: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The slot and the replica of every pack: packs of like cost share a slot, and the slots come
    in the order of their first samples, so that a run does not begin with the costliest."""
    import numpy as np

    rank = np.empty(len(costs), np.int64)
    rank[np.argsort(-costs, kind="stable")] = np.arange(len(costs))
    slot = rank // replicas
    first = np.full(-(-len(costs) // replicas), np.iinfo(np.int64).max)
    np.minimum.at(first, slot, ids[offsets[:-1]])
    order = np.empty_like(first)
    order[np.argsort(first, kind="stable")] = np.arange(len(first))
    return order[slot], rank % replicas


def _step_times(
    costs: NDArray[np.float64], slot: NDArray[np.int64], microbatches: int
) -> dict[str, Any]:
    """How many steps, and what they take when all wait for the costliest pack of every slot: in the
    mean and at most."""
    import numpy as np

    if len(costs) == 0:
        return {"steps": 0, "mean": 0.0, "max": 0.0}
    slots = np.zeros(int(slot.max()) + 1)
    np.maximum.at(slots, slot, costs)
    steps = np.add.reduceat(slots, np.arange(0, len(slots), microbatches))
    return {"steps": len(steps), "mean": float(steps.mean()), "max": float(steps.max())}


def _write(
    output: Path,
    ids: NDArray[np.int64],
    offsets: NDArray[np.int64],
    placed: tuple[NDArray[np.int64], NDArray[np.int64]] | None,
) -> None:
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

    packs = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    columns = {"sample": ids, "pack": packs}
    if placed is not None:
        columns |= {"slot": placed[0][packs], "replica": placed[1][packs]}
    try:
        parquet.write_table(pa.table(columns), output)
    except OSError as error:
        raise click.BadParameter(str(error), param_hint="--output") from None


def _report(
    lengths: NDArray[np.integer],
    ids: NDArray[np.int64],
    offsets: NDArray[np.int64],
    costs: NDArray[np.float64],
    max_tokens: int,
    replicas: int | None,
    seconds: float,
) -> dict[str, Any]:
    import numpy as np

    from flowengine.schedule import least_packs

    num_packs = len(offsets) - 1
    tokens = int(lengths[ids].sum(dtype=np.int64))
    fitting = lengths[lengths <= max_tokens]
    report: dict[str, Any] = {
        "samples": len(lengths),
        "dead_letters": len(lengths) - len(ids),
        "too_long": len(lengths) - len(fitting),
        "packs": num_packs,
        "least_packs": least_packs(fitting, max_tokens=max_tokens),
        "tokens": tokens,
        "fill": tokens / (num_packs * max_tokens) if num_packs else 0.0,
        "costliest_pack_over_mean": float(costs.max() / costs.mean()) if num_packs else 1.0,
        "seconds": seconds,
    }
    if replicas and num_packs:
        falling = np.sort(costs)[::-1]
        report["slots"] = -(-num_packs // replicas)
        waited = float(falling[::replicas].sum()) * replicas
        report["waiting"] = 1 - float(costs.sum()) / waited
    return report


def _describe(report: dict[str, Any], output: Path) -> str:
    lines = [
        f"{report['samples']:,} samples, {report['tokens']:,} tokens",
        f"{report['packs']:,} packs (no packing has fewer than {report['least_packs']:,}), "
        f"{report['fill']:.2%} full",
        f"costliest pack / mean {report['costliest_pack_over_mean']:.3f}",
    ]
    if report["too_long"]:
        what = "in no pack" if report["dead_letters"] else "in packs of their own"
        lines.append(f"{report['too_long']:,} samples longer than a pack, {what}")
    if "slots" in report:
        lines.append(f"{report['slots']:,} slots, {report['waiting']:.2%} of the time waiting")
    step = report["step"]
    unit = " s" if step["unit"] == "s" else ""
    lines.append(
        f"{step['steps']:,} steps of {step['mean']:.4g}{unit} in the mean, {step['max']:.4g}{unit} "
        "at most"
    )
    lines.append(f"packed in {report['seconds']:.3f} s")
    return "\n".join([*lines, f"plan: {output}"])
