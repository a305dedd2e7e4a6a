"""Accelerators by their data sheets, and fleets of them: "64xH200".

Peaks are dense, without structured sparsity. Links are one device's bandwidth in one direction:
`link` to the others of its node, `network` to other nodes. Networks are not the device's own; they
are those of the vendors' reference nodes (one 400 Gb/s port per device; older ones 200 Gb/s).
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace

from flowengine.errors import PlanError

GB = 1e9
TERA = 1e12


@dataclass(frozen=True)
class Device:
    """One accelerator. bf16, fp32: peak FLOP/s of matrix units in the dtype that training computes
    in (fp32: TF32 where there is one). memory_bytes; the rates in bytes per second; source: where
    the figures stand."""

    name: str
    bf16: float
    fp32: float
    memory_bytes: float
    bandwidth: float
    link: float
    network: float
    per_node: int
    source: str


LIBRARY = {
    device.name.lower(): device
    for device in (
        Device(
            "A100-40GB",
            312 * TERA,
            156 * TERA,
            40 * GB,
            1555 * GB,
            300 * GB,
            25 * GB,
            8,
            "NVIDIA A100 data sheet, SXM, 2021",
        ),
        Device(
            "A100-80GB",
            312 * TERA,
            156 * TERA,
            80 * GB,
            2039 * GB,
            300 * GB,
            25 * GB,
            8,
            "NVIDIA A100 data sheet, SXM, 2021",
        ),
        Device(
            "H100",
            989.4 * TERA,
            494.7 * TERA,
            80 * GB,
            3350 * GB,
            450 * GB,
            50 * GB,
            8,
            "NVIDIA H100 data sheet, SXM, half of the figures with sparsity",
        ),
        Device(
            "H200",
            989.4 * TERA,
            494.7 * TERA,
            141 * GB,
            4800 * GB,
            450 * GB,
            50 * GB,
            8,
            "NVIDIA H200 data sheet, SXM, half of the figures with sparsity",
        ),
        Device(
            "H20",
            148 * TERA,
            74 * TERA,
            96 * GB,
            4000 * GB,
            450 * GB,
            50 * GB,
            8,
            "reported figures of the H20; no public data sheet",
        ),
        Device(
            "B200",
            2250 * TERA,
            1125 * TERA,
            180 * GB,
            7700 * GB,
            900 * GB,
            50 * GB,
            8,
            "NVIDIA HGX B200 data sheet, an eighth of the node, half of the figures with sparsity",
        ),
        Device(
            "L40S",
            362 * TERA,
            183 * TERA,
            48 * GB,
            864 * GB,
            32 * GB,
            25 * GB,
            8,
            "NVIDIA L40S data sheet; PCIe 4.0 between devices",
        ),
        Device(
            "MI300X",
            1307.4 * TERA,
            653.7 * TERA,
            192 * GB,
            5300 * GB,
            448 * GB,
            50 * GB,
            8,
            "AMD Instinct MI300X data sheet; seven links of 64 GB/s each way",
        ),
        Device(
            "Ascend910B",
            320 * TERA,
            80 * TERA,
            64 * GB,
            1600 * GB,
            196 * GB,
            25 * GB,
            8,
            "reported figures (FP16 about 320 TFLOP/s, 64 GB); no public data sheet",
        ),
    )
}
"""By lower-case name."""


@dataclass(frozen=True)
class Fleet:
    """So many devices of one kind, in nodes of `per_node`."""

    device: Device
    count: int

    @property
    def node_size(self) -> int:
        """Devices of a node: those that tensor parallelism may span."""
        return min(self.device.per_node, self.count)

    def __str__(self) -> str:
        return f"{self.count}x{self.device.name}"


def find_device(name: str) -> Device:
    """The device of this name, in any case; PlanError, with the nearest names, if unknown."""
    found = LIBRARY.get(name.lower())
    if found is None:
        near = difflib.get_close_matches(name.lower(), LIBRARY, 1)
        hint = f"did you mean {LIBRARY[near[0]].name}?" if near else f"known: {known_devices()}"
        raise PlanError(f"devices: '{name}' is not in the library; {hint}")
    return found


def known_devices() -> str:
    """The library's names."""
    return ", ".join(device.name for device in LIBRARY.values())


def parse_fleet(text: str, *, memory_bytes: float | None = None) -> Fleet:
    """COUNTxDEVICE, e.g. "64xH200"; PlanError where it is not that.

    memory_bytes: what one device has, where it is not the data sheet's.
    """
    match = re.fullmatch(r"(\d+)\s*[xX*]\s*(\S+)", text.strip())
    if match is None or int(match[1]) < 1:
        raise PlanError(f"devices: '{text}'; expected COUNTxDEVICE, e.g. 64xH200")
    device = find_device(match[2])
    if memory_bytes is not None:
        device = replace(device, memory_bytes=memory_bytes)
    return Fleet(device, int(match[1]))
