"""Checkpoints: what a run needs to go on from a step's end as if it had never stopped."""

from flowengine.checkpoint.description import describe_graph, describe_machine, find_differences
from flowengine.checkpoint.folder import Folder, partial_dir
from flowengine.checkpoint.manifest import (
    Manifest,
    find_checkpoint,
    find_run,
    newest_checkpoint,
    open_checkpoint,
)
from flowengine.checkpoint.part import Part, read_part, write_part
from flowengine.checkpoint.publish import Publisher
from flowengine.checkpoint.spread import is_spread, local_of, whole
from flowengine.checkpoint.store import PartStore
from flowengine.checkpoint.training import gather_training, restore_training
from flowengine.checkpoint.writer import PartWriter

__all__ = [
    "Folder",
    "Manifest",
    "Part",
    "PartStore",
    "PartWriter",
    "Publisher",
    "describe_graph",
    "describe_machine",
    "find_checkpoint",
    "find_differences",
    "find_run",
    "gather_training",
    "is_spread",
    "local_of",
    "newest_checkpoint",
    "open_checkpoint",
    "partial_dir",
    "read_part",
    "restore_training",
    "whole",
    "write_part",
]
