"""Sound: spectrograms, encoders, and graphs with pictures and sound in the same samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from running import run_graph
from torch import Tensor

from flowengine import check
from flowengine.api import Sample
from flowengine.graphs import sound_cards
from flowengine.operators.audio import AudioEncoder, log_mel
from flowengine.operators.sources import SoundCards
from flowengine.runtime import Runtime
from flowengine.testing import check_operator, verify


def clip(number: int, length: int) -> Tensor:
    draw = torch.Generator().manual_seed(number)
    return torch.rand(length, generator=draw) - 0.5


def sounds(lengths: tuple[int, ...] = (400, 2400, 5000)) -> list[Sample]:
    empty = torch.zeros(1, dtype=torch.long)
    return [Sample(empty, empty, media={"audio": clip(n, n)}) for n in lengths]


@pytest.mark.slow
@pytest.mark.parametrize("bands", [40, 80, 128])
def test_spectrograms_are_whispers(bands: int) -> None:
    """The log-mel spectrogram is the one of transformers' extractor."""
    transformers: Any = pytest.importorskip("transformers", reason="needs flowengine[hf]")
    extractor = transformers.WhisperFeatureExtractor(feature_size=bands, chunk_length=1)
    samples = clip(1, 16_000)
    theirs = extractor(samples.numpy(), sampling_rate=16_000, return_tensors="pt")
    found = log_mel(samples, bands=bands)
    torch.testing.assert_close(found, theirs["input_features"][0].T, rtol=0, atol=2e-5)


def test_the_encoder_keeps_the_rules() -> None:
    """Clips of other lengths in the batch change nothing, and every weight learns."""
    check_operator(AudioEncoder(width=16, depth=1, output=8), samples=sounds())


@pytest.mark.parametrize("length", [201, 320, 1280, 1281, 16_000, 20_001])
def test_rows_are_known_from_the_length(length: int) -> None:
    """`num_rows` is what the encoder makes, for whole and broken frames."""
    encoder = AudioEncoder(width=8, depth=1, heads=1, output=4)
    rows = encoder.forward(encoder.build(), encoder.batch([clip(0, length)]))
    assert len(rows) == encoder.num_rows(length)


def test_what_is_no_clip_is_refused() -> None:
    """Integers, and a clip shorter than a window's half, are named."""
    with pytest.raises(ValueError, match="expected floats"):
        log_mel(torch.zeros(1000, dtype=torch.int16), bands=40)
    with pytest.raises(ValueError, match=r"a clip has shape \(200,\)"):
        log_mel(torch.zeros(200), bands=40)


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_sound_cards_are_a_sound_source(split: Any) -> None:
    """Lengths agree with samples, and rows with what the encoders make."""
    source = SoundCards(split=split)
    check_operator(source)
    for index in range(8):
        lengths, sample = source.lengths(index), source.read(index)
        rows = AudioEncoder().num_rows(len(sample.items("audio")[0]))
        height, width, _ = sample.items("image")[0].shape
        assert lengths.media == {"audio": rows, "image": height * width // 256}


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["inline", "local"])
def test_two_modalities_in_the_same_samples_are_exact(runtime: Runtime, tmp_path: Path) -> None:
    """Loss and gradients of both encoders are those of the plain loop, sample by sample."""
    graph = sound_cards.build(samples=12, evaluate_samples=8)
    graph.dtype = "float64"
    found = verify(graph, run_dir=tmp_path, runtime=runtime)
    assert found.agrees, (found.loss_difference, found.gradient_difference)
    assert set(found.differences) == {"vision_encoder", "audio_encoder", "language_model"}


@pytest.mark.slow
def test_sound_cards_learn(tmp_path: Path) -> None:
    """The loss falls within a few steps."""
    graph = sound_cards.build(steps=12, samples=16, evaluate_samples=8, lr=3e-3)
    check(graph)
    losses = run_graph(graph, tmp_path).losses
    assert losses[-1] < 0.8 * losses[0]


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny random Whisper that hears 0.6 seconds."""
    transformers: Any = pytest.importorskip("transformers", reason="needs flowengine[hf]")
    sizes = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "d_model": 16}
    layers = {"encoder_layers": 2, "decoder_layers": 1, "vocab_size": 60, "pad_token_id": 0}
    config = transformers.WhisperConfig(
        **sizes,
        **layers,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        num_mel_bins=20,
        max_source_positions=30,
        max_target_positions=8,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("whisper")
    transformers.WhisperForConditionalGeneration(config).save_pretrained(path)
    return str(path)


@pytest.mark.slow
def test_whispers_encoder_is_loaded_alone(whisper: str) -> None:
    """Its frames are those of the whole model, and it keeps an encoder's rules."""
    import transformers

    from flowengine.operators.hf import PretrainedAudio

    encoder = PretrainedAudio(checkpoint=whisper, output=8, stack=3)
    ears = encoder.build()
    assert not any("decoder" in name for name, _ in ears.named_parameters())
    whole = transformers.WhisperForConditionalGeneration.from_pretrained(whisper)
    mels = encoder.batch([clip(1, 5000), clip(2, 9600)]).mels
    torch.testing.assert_close(
        ears.whisper.encoder(mels).last_hidden_state,
        whole.model.encoder(mels).last_hidden_state,
        rtol=0,
        atol=0,
    )
    rows = encoder.forward(ears, encoder.batch([clip(1, 5000), clip(2, 9600)]))
    assert len(rows) == encoder.num_rows(5000) + encoder.num_rows(9600) == 6 + 10
    with pytest.raises(ValueError, match="a clip has 61 frames of 10 ms; this model hears 60"):
        encoder.batch([clip(1, 9760)])


@pytest.mark.slow
def test_whisper_hears_for_a_pretrained_model(whisper: str, tmp_path: Path) -> None:
    """SmolVLM with Whisper's ears: pictures and sound in one pack, exact to the plain loop."""
    from fakes_pretrained import PictureSamples, make_checkpoint

    from flowengine import Graph, Step
    from flowengine.api import AdamW, GradientReturn, Lengths, Source
    from flowengine.operators.hf import PretrainedAudio, PretrainedLanguage, PretrainedVision
    from flowengine.operators.packing import CostPacker

    path = make_checkpoint("smolvlm", tmp_path / "base")
    ears = PretrainedAudio(checkpoint=whisper, output=32)

    class Both(Source[Sample]):
        """Pictures, and a clip in front of every other sample."""

        def lengths(self, index: int) -> Lengths:
            sample = self.read(index)
            rows = int((sample.tokens == 4).sum())
            plain = PictureSamples(checkpoint=path).lengths(index)
            media = {**plain.media, "audio": rows}
            return Lengths(tokens=len(sample.tokens), targets=plain.targets, media=media)

        def read(self, index: int) -> Sample:
            plain = PictureSamples(checkpoint=path).read(index)
            if index % 2:
                return plain
            sound = clip(index, 3000 + 500 * index)
            places = torch.full((ears.num_rows(len(sound)),), 4)
            return Sample(
                tokens=torch.cat((places, plain.tokens)),
                labels=torch.cat((torch.full_like(places, -100), plain.labels)),
                media={**plain.media, "audio": sound},
                grids=plain.grids,
            )

    adam = AdamW(lr=1e-3)
    graph = Graph("ears", step=Step(samples=6), steps=1, dtype="float64")
    samples = graph.add(Both())
    seen = graph.add(PretrainedVision(checkpoint=path), samples, optimizer=adam)
    heard = graph.add(ears, samples, optimizer=adam)
    packs = graph.add(
        CostPacker(max_tokens=400), graph.pool(samples, seen, heard, capacity="8 MiB")
    )
    language = PretrainedLanguage(checkpoint=path, others={"audio": 4})
    model = graph.add(language, packs, optimizer=adam)
    graph.feedback(GradientReturn(), model["gradients"], to=seen)
    graph.feedback(GradientReturn(), model["gradients"], to=heard)
    found = verify(graph, run_dir=tmp_path / "run", runtime="inline")
    assert found.agrees, (found.loss_difference, found.gradient_difference)
