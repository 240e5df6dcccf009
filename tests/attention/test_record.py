import json
import re

import pytest
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

from sightline.attention import AttentionMap, Record
from sizes import B, H, K, Q


def make_map(name, kind, queries, keys, **options):
    return AttentionMap(name=name, kind=kind, weights=torch.randn(B, H, queries, keys).softmax(-1), **options)


@pytest.fixture
def record():
    return Record(
        "Toy",
        [
            make_map("encoder.0", "encoder", K, K),
            make_map("decoder.0", "decoder", Q, Q, scores=torch.randn(B, H, Q, Q)),
            make_map("cross.0", "cross", Q, K, heads=(0, 2, 4)),
            make_map("decoder.0", "decoder", Q, Q),
        ],
    )


def test_maps_are_selected_by_index_name_and_kind(record):
    assert record[0].name == "encoder.0"
    assert record["decoder.0"] is record[3]
    assert record.names() == ["encoder.0", "decoder.0", "cross.0"]
    assert [attention_map.name for attention_map in record.of("decoder")] == ["decoder.0"] * 2
    assert record.of("decoder").stack().shape == (2, B, H, Q, Q)


def test_invalid_selections_raise(record):
    with pytest.raises(KeyError, match=r"no attention named 'deocder.0'; it has encoder.0, decoder.0, cross.0"):
        record["deocder.0"]
    with pytest.raises(ValueError, match="stack must have weights of one shape"):
        record.stack()
    kinds = "attention, cross, decoder, encoder, relevance, rollout"
    with pytest.raises(ValueError, match=f"kind must be one of {kinds}, got 'crosss'; did you mean"):
        record.of("crosss")
    assert [attention_map.name for attention_map in record[1:3]] == ["decoder.0", "cross.0"]


def test_repr_lists_the_maps(record):
    lines = repr(record).splitlines()
    assert lines[0] == "Record of Toy: 4 attention maps"
    assert re.fullmatch(r"  encoder\.0  encoder  3 heads, 7 x 7, batch of 2, entropy \d\.\d\d bits", lines[1])
    assert re.fullmatch(r"  cross\.0    cross    heads 0, 2, 4, 5 x 7, batch of 2, entropy \d\.\d\d bits", lines[3])
    assert repr(Record("Toy")) == "Record of Toy: no attention maps"


def test_entropy_is_in_bits_and_skips_fully_masked_rows():
    weights = torch.tensor([[0.25, 0.25, 0.25, 0.25], [1.0, 0, 0, 0], [0, 0, 0, 0]])[None, None]
    assert_close(AttentionMap(name="a", kind="encoder", weights=weights).entropy(), 1.0)
    assert AttentionMap(name="a", kind="encoder", weights=torch.zeros(1, 1, 1, 2)).entropy() == 0


def test_saved_records_load_unchanged(record, tmp_path):
    path = tmp_path / "record.safetensors"
    record.save(path)
    loaded = Record.load(path)
    assert repr(loaded) == repr(record)
    for a, b in zip(record, loaded, strict=True):
        assert (a.name, a.kind, a.heads) == (b.name, b.kind, b.heads)
        assert torch.equal(a.weights, b.weights)
        assert (a.scores is None) == (b.scores is None)
    assert torch.equal(record[1].scores, loaded[1].scores)
    assert [p.name for p in tmp_path.iterdir()] == ["record.safetensors"]


def test_repr_of_a_long_record_is_truncated():
    text = repr(Record("Toy", [make_map(f"layer.{i % 12}", "decoder", 1, 2) for i in range(100)]))
    assert text.count("\n") == 61
    assert text.endswith("and 40 more of 12 layers")


def test_call_index_and_cache_reorders_are_saved(tmp_path):
    Record("Toy", [make_map("a", "decoder", Q, Q, call_index=3, cache_reorders=4)]).save(tmp_path / "new.safetensors")
    (attention_map,) = Record.load(tmp_path / "new.safetensors")
    assert (attention_map.call_index, attention_map.cache_reorders) == (3, 4)


def test_weights_and_scores_that_share_memory_are_saved(tmp_path):
    same = torch.rand(1, 1, 2, 2)
    Record("Toy", [AttentionMap(name="a", kind="encoder", weights=same, scores=same)]).save(
        tmp_path / "new" / "r.safetensors"
    )
    assert torch.equal(Record.load(tmp_path / "new" / "r.safetensors")[0].scores, same)


def test_weights_that_are_no_probabilities_have_no_entropy():
    attention_map = AttentionMap(name="a", kind="encoder", weights=torch.tensor([[-1.0, 1.0]])[None, None])
    assert attention_map.entropy() is None
    assert "no probabilities" in repr(Record("Toy", [attention_map]))


def test_a_failed_save_keeps_the_old_file(record, tmp_path, monkeypatch):
    path = tmp_path / "record.safetensors"
    record.save(path)
    before = path.read_bytes()

    def fail(tensors, part, metadata):
        part.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr("sightline.attention.record.save_file", fail)
    with pytest.raises(OSError, match="no space left"):
        record.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["record.safetensors"]


def file_with_entry(weights, **changes):
    """A function that writes a record with one entry, changed."""
    entry = {"name": "a", "kind": "encoder", "heads": None, "call_index": None, "cache_reorders": 0}
    entry |= {"note": "", "over": "tokens", "windows": None, "measure": "attention", "queries": None}
    entry = json.dumps([entry | changes])
    inputs = json.dumps({"missed": {}, "patch_grid": None, "image_tokens": None})
    metadata = {"format": "sightline record 4", "maps": entry, "inputs": inputs}
    return lambda p: save_file({"0.weights": weights}, p, metadata)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (
            file_with_entry(torch.zeros(1, 1, 1, 1), kind="nonsense"),
            "kind must be one of cross, decoder, encoder, got 'nonsense'",
        ),
        (file_with_entry(torch.zeros(1, 1, 1, 1), name=5), "name, note, over and queries must be strings, got "),
        (file_with_entry(torch.zeros(1, 1, 1, 1), queries="xy"), "queries must be null or a list of names, got 'xy'"),
        (
            file_with_entry(torch.zeros(1, 1, 1, 1), measure="nonsense"),
            "measure must be one of attention, relevance, rollout, got 'nonsense'",
        ),
        (file_with_entry(torch.zeros(1, 1, 1, 1), heads="xy"), "heads must be null or a list of integers, got 'xy'"),
        (file_with_entry(torch.zeros(3)), "weights must be floats of shape"),
        (file_with_entry(torch.zeros(1, 1, 1, 1, dtype=torch.int64)), "weights must be floats of shape"),
        (
            lambda p: save_file({"x": torch.zeros(1)}, p, {"format": "sightline record 4", "maps": "[" * 100_000}),
            "must be a complete Sightline record",
        ),
        (lambda p: p.mkdir(), "must be a complete Sightline record"),
        (lambda p: p.write_bytes(b"not safetensors"), "must be a complete Sightline record"),
        (
            lambda p: save_file({"x": torch.zeros(1)}, p),
            "its format must be 'sightline record 4', got None",
        ),
        (
            lambda p: save_file({"x": torch.zeros(1)}, p, {"format": "sightline record 4", "maps": '[{"name": "a"}]'}),
            "must be a complete Sightline record",
        ),
        (
            lambda p: save_file({"x": torch.zeros(1)}, p, {"format": "sightline record 4", "maps": "[3"}),
            "must be a complete Sightline record",
        ),
    ],
)
def test_invalid_files_are_rejected(write, message, tmp_path):
    path = tmp_path / "x.safetensors"
    write(path)
    with pytest.raises(ValueError, match=message):
        Record.load(path)


def test_a_map_is_printed_as_one_line():
    weights = torch.full((B, H, Q, K), 1 / K)
    attention_map = AttentionMap(name="layer", kind="cross", weights=weights)
    assert repr(attention_map).startswith(f"AttentionMap(layer, cross    {H} heads, {Q} x {K}, batch of {B}, entropy")
    relevance = AttentionMap(name="relevance", kind="encoder", weights=weights, measure="relevance")
    assert "entropy" not in repr(relevance)
    with pytest.raises(IndexError, match="record has 1 attention maps, got index 1"):
        Record("Toy", [attention_map])[1]
