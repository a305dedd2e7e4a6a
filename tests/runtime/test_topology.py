"""From a graph to workers and channels."""

from __future__ import annotations

import pytest
from fakes import MixedSamples, small_graph
from fakes_plain import Gather, Numbers, halve, plain_graph, same, total

from flowengine import Graph, Step
from flowengine.runtime.topology import SAMPLES, Topology


def channels(graph: Graph) -> list[tuple[str, str, str, str]]:
    """Every channel as (producer, output, consumer, port)."""
    topology = Topology(graph)
    labels = [worker.label for worker in topology.workers]
    return [(labels[c.producer], c.output, labels[c.consumer], c.port) for c in topology.channels]


def test_a_training_graph_has_these_channels() -> None:
    """The source feeds encoder and packer, encoders feed the packer, the packer the model; a pool
    is no worker, and gradients need no channel."""
    assert channels(small_graph(evaluate=4)) == [
        ("source", "out", "encoder", "sample"),
        ("source", "out", "packer", SAMPLES),
        ("encoder", "out", "packer", "image"),
        ("packer", "out", "model", "pack"),
        ("model", "answers", "accuracy", "answer"),
    ]


@pytest.mark.parametrize("replicas", [1, 2, 7])
def test_every_replica_has_a_channel_of_its_own(replicas: int) -> None:
    """Between two stages there is a channel per pair of replicas; indices count up."""
    graph = plain_graph(same, same, replicas=replicas)
    topology = Topology(graph)
    assert len(topology.workers) == 2 + 2 * replicas
    assert len(topology.channels) == replicas + replicas**2 + replicas
    assert [worker.index for worker in topology.workers] == list(range(len(topology.workers)))
    assert [channel.index for channel in topology.channels] == list(range(len(topology.channels)))
    assert [w.replica for w in topology.replicas_of("f1")] == list(range(replicas))


def test_a_label_names_the_replica_where_there_are_several() -> None:
    """A worker is called as its stage, with its replica's number if it is not the only one."""
    labels = [worker.label for worker in Topology(small_graph(replicas=2)).workers]
    assert labels == ["source", "encoder[0]", "encoder[1]", "packer", "model"]


@pytest.mark.parametrize("replicas", [1, 2, 7])
def test_shares_are_within_the_capacity(replicas: int) -> None:
    """What all workers may have in the pool together is at most its capacity."""
    graph = small_graph(replicas=replicas, model_replicas=replicas, evaluate=4, capacity="1 MiB")
    limits = {worker.label: worker.limit for worker in Topology(graph).workers}
    assert sum(limits.values()) <= 2**20
    assert limits["packer"] == limits["accuracy"] == 0
    assert all(limit % 4096 == 0 for limit in limits.values())


def test_those_who_trade_have_a_connection() -> None:
    """Connected are the ends of every channel, and each objective with the owners of what lies in
    its packs, whose leases it returns."""
    topology = Topology(small_graph(replicas=2, model_replicas=2, evaluate=4))
    labels = [worker.label for worker in topology.workers]
    found = {(labels[one], labels[other]) for one, other in topology.pairs}
    ends = {(labels[c.producer], labels[c.consumer]) for c in topology.channels}
    models = ("model[0]", "model[1]")
    returns = {
        (owner, model) for owner in ("source", "encoder[0]", "encoder[1]") for model in models
    }
    assert found == ends | returns
    assert all(one < other for one, other in topology.pairs)


def test_only_what_is_read_travels() -> None:
    """The encoder gets a sample's picture alone, the packer everything but pictures."""
    topology = Topology(small_graph())
    sample = MixedSamples().read(1)
    trimmed = {
        topology.workers[channel.consumer].label: topology.trims(channel)(sample)
        for channel in topology.channels[:2]
    }
    assert trimmed["encoder"]["media"] is sample.media["image"]
    assert set(trimmed["encoder"]) == {"media"}
    assert set(trimmed["packer"]) == {"tokens", "labels", "note", "grids"}


def test_gradients_return_where_an_encoder_trains() -> None:
    """A frozen encoder gets none."""
    assert set(Topology(small_graph()).feedback_modalities()) == {"image"}
    assert Topology(small_graph(freeze=True)).feedback_modalities() == {}


def test_ports_are_channels() -> None:
    """Several outputs, several inputs and several streams on one input each have a channel."""
    graph = Graph("ports", step=Step(samples=4), steps=1)
    halves = graph.add(halve, graph.add(Numbers(), name="source"))
    graph.add(Gather(), graph.add(total, [halves["even"], halves["rest"]], halves["rest"]))
    assert channels(graph) == [
        ("source", "out", "halve", "number"),
        ("halve", "even", "total", "one"),
        ("halve", "rest", "total", "one"),
        ("halve", "rest", "total", "other"),
        ("total", "out", "gather", "number"),
    ]
