"""Conversations from every form of data set: the same samples, in the same order, from anywhere."""

from __future__ import annotations

import json
import pickle
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from fakes_data import (
    FORMS,
    NUMBER,
    PLACEHOLDER,
    make_tokenizer,
    picture,
    row,
    with_bytes,
    write_shard,
)
from running import Ran, run_graph
from torch import Tensor

from flowengine import Graph, Step, run
from flowengine.api import AdamW, GradientReturn, Sample, SampleError
from flowengine.operators.language import LanguageModel
from flowengine.operators.packing import CostPacker
from flowengine.operators.sources import (
    ArrowRecords,
    Cells,
    Conversations,
    InMemory,
    JsonRecords,
    Records,
    TarRecords,
    Template,
)
from flowengine.operators.vision import VisionEncoder
from flowengine.testing import check_operator

TOKENIZER = make_tokenizer()


def source(records: Records, **settings: Any) -> Conversations:
    pictures = Cells(placeholder=PLACEHOLDER, least=256, most=1024)
    return Conversations(records=records, tokenizer=TOKENIZER, pictures=pictures, **settings)


def one(**more: Any) -> Conversations:
    """A source of one row: row 1, changed."""
    return source(InMemory([{**with_bytes(row(1)), **more}]))


def same(first: Sample, second: Sample) -> bool:
    tensors = [
        [sample.tokens, sample.labels, *sample.items("image"), *sample.grids.values()]
        for sample in (first, second)
    ]
    return len(tensors[0]) == len(tensors[1]) and all(map(torch.equal, *tensors))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_holds_the_same_samples(form: str, tmp_path: Path) -> None:
    """Tokens, labels, pictures and grids are those of the rows in memory, in their order."""
    found, wanted = source(FORMS[form](tmp_path)), source(FORMS["memory"](tmp_path))
    assert found.num_samples() == NUMBER
    for index in reversed(range(NUMBER)):
        assert same(found.read(index), wanted.read(index)), index
        assert len(found.read(index).items("image")) == index % 3


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_a_sound_source(form: str, tmp_path: Path) -> None:
    """Lengths from headers are those of the decoded samples; reading repeats; it pickles."""
    check_operator(source(FORMS[form](tmp_path), seed=3), num_read=NUMBER)


@pytest.mark.parametrize("form", FORMS)
def test_a_resumed_source_goes_on_in_the_same_order(form: str, tmp_path: Path) -> None:
    """Shuffled over three epochs, a source opened in the middle gives the samples it would have."""
    records = FORMS[form](tmp_path)
    whole = source(records, seed=5, epochs=3)
    before = [whole.read(index) for index in range(3 * NUMBER)]
    resumed = pickle.loads(pickle.dumps(source(records, seed=5, epochs=3)))
    for index in range(NUMBER + 4, 3 * NUMBER):
        assert same(resumed.read(index), before[index]), index


def test_every_epoch_has_every_record_in_an_order_of_its_own(tmp_path: Path) -> None:
    """Shuffling is a permutation per epoch, by the seed; without a seed there is none."""
    records = FORMS["memory"](tmp_path)
    shuffled = source(records, seed=1, epochs=None)
    assert shuffled.num_samples() is None
    epochs = [
        tuple(shuffled.place(epoch * NUMBER + i) for i in range(NUMBER)) for epoch in range(4)
    ]
    assert all(sorted(epoch) == list(range(NUMBER)) for epoch in epochs)
    assert len(set(epochs)) == 4
    other = source(records, seed=2)
    assert [other.place(i) for i in range(NUMBER)] != list(epochs[0])
    assert [source(records, epochs=2).place(i) for i in range(14)] == [*range(11), 0, 1, 2]


def text_of(tokens: Tensor) -> str:
    return str(TOKENIZER.decode(tokens.tolist(), skip_special_tokens=False))


def test_targets_are_what_the_assistant_says() -> None:
    """In ChatML the targets are the assistant's words and their stop, in every turn."""
    sample = source(InMemory([with_bytes(row(4))]), template=Template(system="Be brief.")).read(0)
    text, answers = text_of(sample.tokens), sample.tokens[sample.labels != -100]
    rows = int(sample.grids["image"].prod(1).sum())
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        f"<|im_start|>user\n{'<|image|>' * rows}What is 4?<|im_end|>\n"
        "<|im_start|>assistant\nIt is 28.<|im_end|>\n"
        "<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n"
    )
    assert text_of(answers) == "It is 28.<|im_end|>Yes.<|im_end|>"


def test_tokens_are_those_of_a_chat_template() -> None:
    """The default is what transformers makes of ChatML's Jinja template."""
    transformers: Any = pytest.importorskip("transformers", reason="needs flowengine[hf]")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=make_tokenizer())
    fast.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    )
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Grüße,\n  wer da?"},
        {"role": "assistant", "content": "Niemand."},
    ]
    sample = Conversations(records=InMemory([{"messages": messages}]), tokenizer=fast).read(0)
    wanted = fast.apply_chat_template(messages, return_dict=True)["input_ids"]
    assert sample.tokens.tolist() == wanted


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ({"caption": "A cat."}, "user\n<i>\n<|im_end|>assistant\nA cat.<|im_end|>"),
        (
            {"texts": [{"user": "Who?", "assistant": "Me."}]},
            "user\n<i>\nWho?<|im_end|>assistant\nMe.<|im_end|>",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "image"}]},
                    {"role": "assistant", "content": "B"},
                ]
            },
            "user\nA<i><|im_end|>assistant\nB<|im_end|>",
        ),
    ],
)
def test_rows_of_other_forms_are_read(form: dict[str, Any], wanted: str) -> None:
    """Captions, question and answer pairs, and messages with parts; a picture goes in front where
    nothing says its place."""
    sample = source(InMemory([{"image": {"bytes": picture(1)}, **form}])).read(0)
    rows = int(sample.grids["image"].prod())
    text = text_of(sample.tokens).replace("<|image|>" * rows, "<i>")
    assert text.replace("<|im_start|>", "").replace("<|im_end|>\n", "<|im_end|>") == wanted


def jpeg_cut_short() -> bytes:
    import io

    from PIL import Image

    buffer = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(buffer, format="JPEG")
    return buffer.getvalue()[:-500]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"images": [b"no picture"]}, "picture 'of 10 bytes' is in no known format"),
        ({"images": [jpeg_cut_short()]}, "cannot be read: image file is truncated"),
        ({"images": ["gone.png"]}, r"picture 'gone\.png' cannot be read: .*No such file"),
        ({"images": [picture(1, size=(4000, 4))]}, "expected sides within 200 : 1"),
        ({"images": []}, "1 '<image>' in its text but 0 pictures"),
        ({"conversations": None}, "expected 'conversations', 'messages', 'texts'"),
        ({"conversations": [{"from": "bot", "value": ""}]}, "a turn is by 'bot'; expected one of"),
        ({"conversations": [{"from": "gpt"}]}, "it has no 'value'; its keys are"),
        (
            {"conversations": [{"from": "human", "value": "<image>Hi"}]},
            "no target: no assistant's turn",
        ),
        (
            {"conversations": [{"from": "gpt", "value": "<image> <|image|>"}]},
            "holds the placeholder 3 itself, 1 times",
        ),
    ],
)
def test_a_record_that_cannot_be_trained_on_is_named(changes: dict[str, Any], text: str) -> None:
    """What is wrong with the data is a SampleError with the record's name in front."""
    with pytest.raises(SampleError, match=rf"row 0 \(id 'r1'\): .*{text}"):
        one(**changes).read(0)


def test_bounds_are_kept_before_decoding() -> None:
    """A picture of too many pixels and a sample of too many tokens are refused from headers."""
    records = InMemory([with_bytes(row(1))])
    with pytest.raises(SampleError, match=r"pixels, at most 99 are decoded; raise max_pixels="):
        source(records, max_pixels=99).lengths(0)
    with pytest.raises(SampleError, match=r"tokens, max_tokens is 20"):
        source(records, max_tokens=20).lengths(0)


def test_a_header_is_all_that_lengths_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Token counts come without decoding a pixel."""
    from PIL import ImageFile

    def refuse(*_: Any) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", refuse)
    assert one().lengths(0).media["image"] > 0


def test_a_turned_picture_is_upright() -> None:
    """The EXIF orientation counts in the size and in the pixels."""
    import io

    from PIL import Image

    image = Image.new("RGB", (32, 16), (9, 9, 9))
    image.paste((200, 0, 0), (0, 0, 16, 16))
    exif = Image.Exif()
    exif[274] = 6
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", exif=exif)
    upright = one(images=[buffer.getvalue()])
    found = upright.read(0).items("image")[0]
    assert found.shape == (32, 16, 3)
    assert found[4, 4].tolist() == [200, 0, 0]
    assert found[28, 4].tolist() == [9, 9, 9]


def cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


@pytest.mark.parametrize(("size", "text"), [(700, "is cut off in"), (1024, "is cut off: no end")])
def test_a_cut_shard_is_refused(size: int, text: str, tmp_path: Path) -> None:
    """Cut in a member or just before one: no record of it vanishes without a word."""
    write_shard(tmp_path / "shard.tar", range(3, 6))
    cut(tmp_path / "shard.tar", size)
    with pytest.raises(ValueError, match=text):
        len(TarRecords(pattern=str(tmp_path / "shard.tar")))


def test_a_cut_arrow_stream_is_refused(tmp_path: Path) -> None:
    """A stream without its end would read as a shorter one."""
    FORMS["arrow"](tmp_path)
    file = tmp_path / "data-00000.arrow"
    cut(file, file.stat().st_size - 8)
    with pytest.raises(ValueError, match="no whole Arrow stream, its end is missing"):
        len(ArrowRecords(pattern=str(file)))


def test_pictures_outside_their_folder_are_refused(tmp_path: Path) -> None:
    """A path in the data cannot lead out of the picture folder."""
    (tmp_path / "images").mkdir()
    (tmp_path / "data.json").write_text(json.dumps([{**row(1), "image": "../data.json"}]))
    records = JsonRecords(path=str(tmp_path / "data.json"), images=str(tmp_path / "images"))
    with pytest.raises(SampleError, match=r"'\.\./data\.json' is outside the folder"):
        source(records).read(0)


def test_a_cut_shard_may_keep_what_is_whole(tmp_path: Path) -> None:
    """Its whole records can be read; a SampleError stands for the lost ones and says so."""
    write_shard(tmp_path / "a.tar", range(3, 6))
    with tarfile.open(tmp_path / "a.tar") as tar:
        (last,) = (member for member in tar if member.name == "005.json")
    write_shard(tmp_path / "b.tar", range(6, 9))
    cut(tmp_path / "a.tar", last.offset_data + 5)
    kept = TarRecords(pattern=str(tmp_path / "*.tar"), cut_off="keep")
    found, lost = [], []
    for index in range(len(kept)):
        try:
            found.append(kept[index].note["id"])
        except SampleError as error:
            lost.append(str(error))
    (text,) = lost
    assert re.match(r"a\.tar: the records from here on are lost: .*is cut off", text)
    assert found == ["r3", "r4", "r6", "r7", "r8"]


def graph_over(
    records: Records, *, settings: Mapping[str, Any] = {"epochs": 2}, **more: Any
) -> Graph:
    adam = AdamW(lr=1e-3)
    graph = Graph("data", step=Step(samples=5), steps=3)
    samples = graph.add(source(records, seed=0, **settings), **more)
    encoder = VisionEncoder(width=16, depth=1, heads=2, output=16)
    features = graph.add(encoder, samples, optimizer=adam)
    pooled = graph.pool(samples, features, capacity="8 MiB")
    packs = graph.add(CostPacker(max_tokens=512), pooled)
    size = TOKENIZER.get_vocab_size()
    language = LanguageModel(
        vocabulary=size, width=16, depth=1, heads=2, groups=1, placeholders={"image": PLACEHOLDER}
    )
    model = graph.add(language, packs, optimizer=adam)
    graph.feedback(GradientReturn(), model["gradients"], to=features)
    return graph


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_graph_trains_from_every_form(form: str, tmp_path: Path) -> None:
    """The losses are those of the rows in memory, bit for bit."""
    (tmp_path / "data").mkdir()
    ran = run_graph(graph_over(FORMS[form](tmp_path / "data")), tmp_path / "run")
    wanted = run_graph(graph_over(FORMS["memory"](tmp_path)), tmp_path / "wanted")
    assert ran.losses == wanted.losses
    assert len(ran.losses) == 3


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_graph_over_every_form_resumes_in_the_middle(form: str, tmp_path: Path) -> None:
    """Behind a checkpoint in the first epoch, the samples come in the order they would have, into
    the second; losses and weights are the same to the bit."""
    (tmp_path / "data").mkdir()
    graph = graph_over(FORMS[form](tmp_path / "data"))
    graph.checkpoint(every=1, keep_last=9)
    whole = run_graph(graph, tmp_path / "whole")
    half = tmp_path / "whole" / "checkpoints" / "step-00000001"
    again = run_graph(graph, tmp_path / "again", resume=half)
    assert again.losses == whole.losses[1:]

    def order(ran: Ran) -> list[tuple[int, int]]:
        rows = [row for stage in ("conversations", "vision_encoder") for row in ran.rows(stage)]
        return sorted((row["step"], row["sample"]) for row in rows)

    assert order(again) == [(step, sample) for step, sample in order(whole) if step]
    for stage, weights in whole.weights.items():
        for name, weight in weights.items():
            assert torch.equal(again.weights[stage][name], weight), (stage, name)


def test_the_table_of_dead_letters_names_records_and_reasons(tmp_path: Path) -> None:
    """Corrupt pictures, a bomb, no target, too long, a truncated shard: with a policy the rest is
    trained, and every one of them has a row."""
    changes: dict[int, dict[str, Any]] = {
        1: {"images": [jpeg_cut_short()]},
        4: {"images": [picture(4, size=(70, 70))]},
        5: {"conversations": [{"from": "human", "value": "<image><image>Hi"}]},
        7: {"conversations": [{"from": "gpt", "value": "<image>" + "long " * 80}]},
    }
    rows = [{**with_bytes(row(number)), **changes.get(number, {})} for number in range(10)]
    settings = {"epochs": 1, "max_pixels": 4500, "max_tokens": 200}
    graph = graph_over(InMemory(rows), settings=settings, bad_samples="dead-letter")
    graph.steps = None
    run(graph, runtime="inline", run_dir=tmp_path / "run")
    found = pq.read_table(tmp_path / "run" / "dead_letters.parquet").to_pylist()
    reasons = {re.search(r"\(id '(r\d)'\)", each["reason"])[1]: each["reason"] for each in found}  # type: ignore[index]
    assert reasons.keys() == {"r1", "r4", "r5", "r7"}
    for name, text in {
        "r1": "cannot be read: image file is truncated",
        "r4": "has 70 x 70 pixels, at most 4500 are decoded",
        "r5": "no target",
        "r7": "tokens, max_tokens is 200",
    }.items():
        assert text in reasons[name], reasons[name]
    assert {each["stage"] for each in found} == {"conversations"}
