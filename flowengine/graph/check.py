"""Refuses before the run what can be refused: every rule is a function from a graph to problems.

A problem is one sentence: where, what was found, what was expected, what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flowengine.errors import GraphError
from flowengine.graph import gang_rules as gangs
from flowengine.graph import shape_rules as shape
from flowengine.graph import stream_rules as streams
from flowengine.graph import training_rules as training
from flowengine.graph.graph import Graph

Rule = Callable[[Graph], Iterator[str]]

_SHAPE: tuple[Rule, ...] = (
    shape.numbers_are_sane,
    shape.names_are_unique,
    shape.there_is_one_source,
    shape.there_is_no_cycle,
)
_MEANING: tuple[Rule, ...] = (
    streams.types_fit,
    streams.pool_joins_samples_and_features,
    streams.everything_is_read,
    streams.source_has_an_end,
    streams.readers_are_possible,
    streams.packers_can_stream,
    training.modalities_differ,
    training.features_fit_the_objective,
    training.weights_can_train,
    training.feedbacks_reach_encoders,
    gangs.gangs_are_possible,
    gangs.windows_hold_a_slot,
    training.pool_holds_a_pack,
    training.evaluations_are_read,
)


def check(graph: Graph) -> None:
    """Raises GraphError with every problem found, one per line; returns if there is none."""
    problems = find_problems(graph)
    if problems:
        raise GraphError("\n".join(problems))


def find_problems(graph: Graph) -> list[str]:
    """Every problem of the graph. Later rules rely on earlier ones, so the first group that finds
    anything ends the search."""
    for rules in (_SHAPE, _MEANING):
        problems = [problem for rule in rules for problem in rule(graph)]
        if problems:
            return problems
    return []
