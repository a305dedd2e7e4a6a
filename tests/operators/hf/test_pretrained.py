"""The parts of a pretrained model, packed and in processes of their own, train as the whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes_pretrained import (
    CONFIGS,
    PictureSamples,
    make_checkpoint,
    pretrained_graph,
    transformers,
)
from running import run_graph

from flowengine.api import GradientReturn, Gradients, Joined, Pack, join_samples
from flowengine.operators.hf import (
    LoRA,
    PretrainedLanguage,
    PretrainedPictures,
    PretrainedVision,
)
from flowengine.operators.hf.checkpoint import Checkpoint
from flowengine.operators.hf.export import export
from flowengine.operators.hf.whole import WholeModel
from flowengine.operators.sources import Conversations
from flowengine.testing import verify

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A directory per family."""
    root = tmp_path_factory.mktemp("checkpoints")
    return {kind: make_checkpoint(kind, root / kind) for kind in CONFIGS}


@pytest.mark.parametrize("kind", CONFIGS)
def test_each_part_holds_its_own_weights_alone(kind: str, checkpoints: dict[str, str]) -> None:
    """Together the parts have every parameter and buffer of the whole, bit for bit, none twice."""
    path = checkpoints[kind]
    parts = [PretrainedVision(checkpoint=path).build(), PretrainedLanguage(checkpoint=path).build()]
    whole = transformers.AutoModelForImageTextToText.from_pretrained(path)
    for listed in ("named_parameters", "named_buffers"):
        wanted = dict(getattr(whole, listed)())
        found = [dict(getattr(part, listed)()) for part in parts]
        assert not found[0].keys() & found[1].keys()
        assert (found[0] | found[1]).keys() == wanted.keys()
        for name, tensor in (found[0] | found[1]).items():
            assert torch.equal(tensor, wanted[name]), name


@pytest.mark.parametrize("kind", CONFIGS)
def test_each_part_reads_its_own_tensors_alone(
    kind: str, checkpoints: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the checkpoint's tensors each is read once, by one part: no process reads the others'."""
    read: list[str] = []
    plain = Checkpoint.tensors

    def noting(self: Checkpoint, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in plain(self, names):
            read.append(name)
            yield name, tensor

    monkeypatch.setattr(Checkpoint, "tensors", noting)
    for operator in (PretrainedVision, PretrainedLanguage):
        operator(checkpoint=checkpoints[kind]).build()
    assert sorted(read) == sorted(Checkpoint(checkpoints[kind]).files)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_graph_has_the_gradients_of_the_whole_model(
    kind: str, dtype: Any, checkpoints: dict[str, str], tmp_path: Path
) -> None:
    """Several pictures per sample, samples of text among them, packed: loss and every gradient are
    those of transformers, sample by sample."""
    graph = pretrained_graph(checkpoints[kind], dtype=dtype)
    found = verify(graph, run_dir=tmp_path, steps=2, runtime="inline")
    assert found.agrees, (found.loss_difference, found.gradient_difference)
    whole = transformers.AutoModelForImageTextToText.from_pretrained(checkpoints[kind])
    names = {name for named in found.differences.values() for name in named}
    assert names == {name for name, _ in whole.named_parameters()}


@pytest.mark.parametrize("kind", ["qwen2_5", "qwen3"])
def test_processes_have_the_gradients_of_the_whole_model(
    kind: str, checkpoints: dict[str, str], tmp_path: Path
) -> None:
    """The same with two encoder processes, recomputed activations, and clips among the pictures."""
    graph = pretrained_graph(
        checkpoints[kind], dtype="float64", clips=True, replicas=2, activations="recompute"
    )
    found = verify(graph, run_dir=tmp_path, steps=1, runtime="local")
    assert found.agrees, (found.loss_difference, found.gradient_difference)


class FirstMapOnly(GradientReturn):
    """Loses the gradients of the deepstack maps."""

    def process(self, gradients: Gradients) -> Gradients:
        rows = gradients.rows.clone()
        rows[:, 1:] = 0
        return replace(gradients, rows=rows)


def test_a_lost_deepstack_gradient_is_found(checkpoints: dict[str, str], tmp_path: Path) -> None:
    """Without the gradients of Qwen3-VL's maps the encoder's are wrong, the model's right."""
    graph = pretrained_graph(checkpoints["qwen3"], dtype="float64")
    graph.feedbacks[0].what = FirstMapOnly()
    found = verify(graph, run_dir=tmp_path, runtime="inline")
    assert found.loss_difference < 1e-10
    assert max(found.differences["language"].values()) < 1e-10
    assert max(found.differences["vision"].values()) > 1e-2
    assert not found.agrees


class MeanOfMeans(PretrainedLanguage):
    """The well-known mistake: every pack's loss is its mean."""

    def loss(self, module: Any, pack: Pack) -> torch.Tensor:
        return super().loss(module, pack) / (pack.labels != -100).sum()


def test_averaging_the_means_of_packs_is_found(checkpoints: dict[str, str], tmp_path: Path) -> None:
    """A loss that does not follow the step's targets differs from the plain model's."""
    path = checkpoints["qwen2_5"]
    graph = pretrained_graph(path, dtype="float64", language=MeanOfMeans(checkpoint=path))
    found = verify(graph, run_dir=tmp_path, runtime="inline")
    assert not found.agrees
    assert max(found.differences["language"].values()) > 1e-3


@pytest.mark.parametrize(
    ("kind", "tied", "shard"),
    [
        ("qwen2_5", False, "1GB"),
        ("qwen3", True, "1GB"),
        ("llava", False, "20KB"),
        ("llava_siglip", True, "1GB"),
        ("smolvlm", False, "1GB"),
    ],
)
def test_a_trained_checkpoint_reloads_bit_for_bit(
    kind: str, tied: bool, shard: str, tmp_path: Path
) -> None:
    """After training, export gives the original names, and from_pretrained the trained weights."""
    path = make_checkpoint(kind, tmp_path / "base", shard=shard, tie_word_embeddings=tied)
    run_graph(pretrained_graph(path), tmp_path / "run")
    to = export(tmp_path / "run", tmp_path / "out")
    again = transformers.AutoModelForImageTextToText.from_pretrained(to)
    base = transformers.AutoModelForImageTextToText.from_pretrained(path)
    trained = load_parts(tmp_path / "run")
    loaded, before = again.state_dict(), base.state_dict()
    for name, weight in trained.items():
        assert torch.equal(loaded[name], weight), name
    names = {name for name, _ in again.named_parameters()}
    assert names <= trained.keys() | set(again._tied_weights_keys) | {
        "model.language_model.embed_tokens.weight"
    }
    assert sum(not torch.equal(loaded[name], before[name]) for name in names) > len(names) * 0.6
    assert tensor_names(to) == tensor_names(Path(path))


def load_parts(run_dir: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    files = (run_dir / "weights").glob("*.safetensors")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def tensor_names(path: Path) -> set[str]:
    return set(Checkpoint(path).files)


def test_adapters_train_alone_and_are_merged(checkpoints: dict[str, str], tmp_path: Path) -> None:
    """With LoRA no weight moves but the adapters; the exported weights are W + scale B A."""
    pytest.importorskip("peft", reason="needs flowengine[lora]")
    path = checkpoints["qwen2_5"]
    lora = LoRA(rank=2, alpha=4, targets=("q_proj", "v_proj"))
    language = PretrainedLanguage(checkpoint=path, lora=lora)
    run_graph(pretrained_graph(path, freeze=True, language=language), tmp_path / "run")
    trained = load_parts(tmp_path / "run")
    export(tmp_path / "run", tmp_path / "out")
    again = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path / "out").state_dict()
    base = transformers.AutoModelForImageTextToText.from_pretrained(path).state_dict()
    layer = "model.language_model.layers.0.self_attn.q_proj"
    a, b = (trained[f"{layer}.lora_{x}.default.weight"] for x in "AB")
    assert b.abs().max() > 0
    assert torch.equal(trained[f"{layer}.base_layer.weight"], base[f"{layer}.weight"])
    assert torch.equal(again[f"{layer}.weight"], base[f"{layer}.weight"] + 2.0 * (b @ a))
    changed = {name for name in base if not torch.equal(base[name], again[name])}
    assert all(name.endswith(("q_proj.weight", "v_proj.weight")) for name in changed)
    assert len(changed) == 4


def test_a_frozen_prefix_stays(checkpoints: dict[str, str], tmp_path: Path) -> None:
    """LLaVA's first stage: the projector trains, the tower and the language model do not."""
    path = checkpoints["llava"]
    vision = PretrainedVision(checkpoint=path, frozen=("model.vision_tower",))
    run_graph(pretrained_graph(path, vision=vision), tmp_path)
    base = transformers.AutoModelForImageTextToText.from_pretrained(path).state_dict()
    for name, weight in load_parts(tmp_path).items():
        if name.startswith("model.vision_tower"):
            assert torch.equal(weight, base[name]), name
        elif name.startswith("model.multi_modal_projector"):
            assert not torch.equal(weight, base[name]), name


@pytest.mark.parametrize("kind", CONFIGS)
def test_samples_of_a_pack_do_not_see_each_other(kind: str, checkpoints: dict[str, str]) -> None:
    """The losses of samples add up, in any order of the pack, to the whole model's."""
    path = checkpoints[kind]
    source = PictureSamples(checkpoint=path)
    samples = [source.read(index) for index in (3, 0, 2, 1)]
    vision, language = PretrainedVision(checkpoint=path), PretrainedLanguage(checkpoint=path)
    encoder, model = vision.build().double(), language.build().double()
    whole = WholeModel(path, torch.float64)
    with torch.no_grad():
        wanted = sum(float(whole.loss(sample)) for sample in samples)
        for order in (samples, samples[::-1]):
            pack = join_samples((0, 1, 2, 3), tuple(Joined(sample, {}) for sample in order))
            media = [item for sample in order for item in sample.items("image")]
            rows = vision.forward(encoder, vision.batch(media))
            found = language.loss(model, replace(pack, features={"image": rows}))
            assert float(found) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("kind", ["qwen3", "smolvlm"])
def test_a_data_set_trains_a_pretrained_model(
    kind: str, checkpoints: dict[str, str], tmp_path: Path
) -> None:
    """Conversations with pictures, fitted by the checkpoint's rule, have the whole model's
    gradients."""
    from fakes_data import FORMS, make_tokenizer

    (tmp_path / "data").mkdir()
    path = checkpoints[kind]
    source = Conversations(
        records=FORMS["tar"](tmp_path / "data"),
        tokenizer=make_tokenizer(),
        pictures=PretrainedPictures(checkpoint=path),
        seed=1,
    )
    graph = pretrained_graph(path, dtype="float64", source=source, max_tokens=2000)
    found = verify(graph, run_dir=tmp_path / "run", runtime="inline")
    assert found.agrees, (found.loss_difference, found.gradient_difference)


def test_wrong_input_is_refused_by_name(checkpoints: dict[str, str], tmp_path: Path) -> None:
    """A missing directory, a prefix of nothing, an unscaled picture, rows without placeholders."""
    path = checkpoints["qwen2_5"]
    with pytest.raises(ValueError, match=r"no config\.json there"):
        PretrainedVision(checkpoint=str(tmp_path)).feature_shape()
    with pytest.raises(ValueError, match="frozen='visual' is no parameter's beginning"):
        PretrainedVision(checkpoint=path, frozen=("visual",)).build()
    with pytest.raises(ValueError, match="10 x 8 pixels; expected multiples of 8"):
        PretrainedVision(checkpoint=path).batch([torch.zeros(10, 8, 3, dtype=torch.uint8)])
    language = PretrainedLanguage(checkpoint=path)
    sample = PictureSamples(checkpoint=path).read(1)
    pack = join_samples((1,), (Joined(sample, {}),))
    with pytest.raises(ValueError, match="but 0 feature rows; expected one row for each"):
        language.loss(language.build(), pack)
