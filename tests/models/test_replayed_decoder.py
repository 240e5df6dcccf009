import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from decoding_methods import beam_search, greedy, sample
from seq2seq_models import make_batch, make_model
from sightline.attention import record_attention
from sightline.kernels import decoding_graphs
from sightline.models import text_decoder
from sightline.models.encoders import EncoderOutput

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]
SEARCHES = {
    "greedy": lambda decoder, output: greedy(decoder, output, max_tokens=71),
    "beam": lambda decoder, output: beam_search(decoder, output, num_beams=3, n_best=2, max_tokens=71),
    "beam without early stopping": lambda decoder, output: beam_search(
        decoder, output, num_beams=5, early_stopping=False, max_tokens=23
    ),
    "sample": lambda decoder, output: sample(
        decoder, output, num_samples=2, max_tokens=23, generator=torch.Generator(output.device).manual_seed(3)
    ),
}


@pytest.fixture
def replaying(monkeypatch):
    """Replay on a CPU, where a step runs the function that a GPU captures."""
    decoding_graphs.POOL.free.clear()
    monkeypatch.setattr(text_decoder, "worth_replaying", lambda *_: text_decoder.is_unobserved())


@pytest.fixture
def captured(monkeypatch):
    """Rows of each graph that is captured."""
    rows, init = [], decoding_graphs.StepGraph.__init__
    monkeypatch.setattr(
        decoding_graphs.StepGraph,
        "__init__",
        lambda self, *args: rows.append(args[4][0]) or init(self, *args),
    )
    return rows


def encode(model, device="cpu"):
    source, attention_mask, _ = make_batch()
    return model.to(device).encode(source.to(device), attention_mask.to(device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize(
    "options", [{}, {"norm": "post", "score": "cosine", "tie_embeddings": "none", "positions": "learned"}]
)
def test_searches_with_and_without_graphs_agree(search, options, device, monkeypatch):
    model = make_model("transformer", **options)
    output = encode(model, device)
    monkeypatch.setattr(text_decoder, "worth_replaying", lambda *_: False)
    expected = SEARCHES[search](model.decoder, output)
    monkeypatch.setattr(text_decoder, "worth_replaying", lambda *_: True)
    for _ in range(2):  # captured, then replayed
        results = SEARCHES[search](model.decoder, output)
        for hypotheses, expected_hypotheses in zip(results, expected, strict=True):
            assert [h.tokens for h in hypotheses] == [h.tokens for h in expected_hypotheses]
            scores = [torch.tensor([h.score for h in row]) for row in (hypotheses, expected_hypotheses)]
            assert_close(*scores, atol=1e-3, rtol=1e-4)


@pytest.mark.usefixtures("replaying")
def test_encoder_output_without_a_mask_is_replayed():
    decoder, states = make_model("transformer").decoder, torch.randn(3, 5, 12)
    with torch.inference_mode():
        outputs = EncoderOutput(states), EncoderOutput(states, torch.ones(3, 5, dtype=torch.bool))
        results, masked = (greedy(decoder, output, max_tokens=9, suppress_tokens=(0, 1, 2)) for output in outputs)
    assert results == masked
    assert len(decoding_graphs.POOL.free[decoder]) == 1


@pytest.mark.usefixtures("replaying")
def test_interleaved_batches_use_separate_graphs():
    model, (source, attention_mask, target) = make_model("transformer"), make_batch()
    decoder = model.decoder
    with torch.inference_mode():
        states = [decoder.start(model.encode(source.roll(i, 0), attention_mask.roll(i, 0))) for i in range(2)]
        logits = [[], []]
        for tokens in target.T:
            for i in range(2):
                step, states[i] = decoder.step(states[i], tokens.roll(i, 0))
                logits[i].append(step)
        assert all(state.replay is not None for state in states)
        assert states[0].replay.graph is not states[1].replay.graph
        for i in range(2):
            expected = model(source.roll(i, 0), attention_mask.roll(i, 0), target.roll(i, 0))
            assert_close(torch.stack(logits[i], 1), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("replaying")
def test_rows_can_be_reordered_twice_between_steps():
    model, (source, attention_mask, target) = make_model("transformer"), make_batch()
    decoder, rows = model.decoder, torch.tensor([2, 0, 0, 1, 2, 1, 1, 0])
    order = rows.argsort()
    with torch.inference_mode():
        state = decoder.start(model.encode(source, attention_mask))
        for tokens in target.T[:3]:
            _, state = decoder.step(state, tokens)
        state = decoder.reorder(state, rows)
        state = decoder.reorder(state, order, same_source=True)
        state = decoder.reorder(state, order.argsort(), same_source=True)
        logits, _ = decoder.step(state, target[rows, 3])
        assert_close(logits, model(source, attention_mask, target)[rows, 3], atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("replaying")
def test_graphs_are_reused_until_the_weights_move(captured):
    model = make_model("transformer")
    decoder, output, weight = model.decoder, encode(model), model.decoder.embedding.weight
    for _ in range(3):
        greedy(decoder, output, max_tokens=7, suppress_tokens=(0, 1, 2))
    assert captured == [3]
    weight.data.mul_(2)
    greedy(decoder, output, max_tokens=7, suppress_tokens=(0, 1, 2))
    assert captured == [3]
    weight.data = weight.data.clone()
    greedy(decoder, output, max_tokens=7, suppress_tokens=(0, 1, 2))
    assert captured == [3, 3]
    assert len(decoding_graphs.POOL.free[decoder]) == 1  # the outdated graph is freed
    greedy(copy.deepcopy(decoder), output, max_tokens=7, suppress_tokens=(0, 1, 2))
    assert captured == [3, 3, 3]


@pytest.mark.usefixtures("replaying")
def test_small_batches_do_not_use_large_graphs(captured):
    model, (source, attention_mask, target) = make_model("transformer"), make_batch()
    decoder = model.decoder
    with torch.inference_mode():
        state = decoder.start(model.encode(source.repeat(9, 1), attention_mask.repeat(9, 1)))
        for tokens in target.T[:2]:
            _, state = decoder.step(state, tokens.repeat(9))
        state = decoder.reorder(state, torch.tensor([4, 26, 3, 0]))
        _, state = decoder.step(state, target[[1, 2, 0, 0], 2])
        assert captured == [32]
        state = decoder.reorder(state, torch.tensor([1]))
        logits, state = decoder.step(state, target[[2], 3])
        assert captured == [32, 1]
        assert_close(logits, model(source, attention_mask, target)[[2], 3], atol=1e-5, rtol=1e-5)
        with pytest.raises(ValueError, match=r"tokens must have shape \(1,\), got \(2,\)"):
            decoder.step(state, target[:2, 4])


@pytest.mark.usefixtures("replaying")
def test_replay_stops_when_attention_is_recorded_or_inference_mode_ends():
    model, (source, attention_mask, target) = make_model("transformer"), make_batch()
    decoder, expected = model.decoder, model(source, attention_mask, target)
    with torch.inference_mode():
        state = decoder.start(model.encode(source, attention_mask))
        for tokens in target.T[:3]:
            _, state = decoder.step(state, tokens)
        assert state.replay is not None
        with record_attention(model) as record:
            logits, state = decoder.step(state, target[:, 3])
    assert_close(logits, expected[:, 3], atol=1e-5, rtol=1e-5)
    assert len(record.of("cross")) == len(decoder.stack.layers)
    with torch.no_grad():
        logits, _ = decoder.step(state, target[:, 4])
    assert_close(logits, expected[:, 4], atol=1e-5, rtol=1e-5)


def test_hooks_and_observers_prevent_replay():
    model = make_model("transformer")
    decoder = model.decoder
    assert not decoding_graphs.has_hooks(decoder)
    assert decoding_graphs.has_hooks(copy.deepcopy(decoder).train())
    hook = decoder.stack.layers[1].attention.register_forward_hook(lambda *_: None)
    assert decoding_graphs.has_hooks(decoder)
    hook.remove()
    assert not decoding_graphs.has_hooks(decoder)
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert decoding_graphs.has_hooks(decoder)
    hook.remove()
    assert not text_decoder.is_unobserved()
    with torch.inference_mode():
        assert text_decoder.is_unobserved()
        with record_attention(model):
            assert not text_decoder.is_unobserved()
            model(*make_batch())


def test_buffers_of_graphs_are_limited(monkeypatch):
    model, (source, attention_mask, target) = make_model("transformer"), make_batch()
    decoder = model.decoder
    with torch.inference_mode():
        state = decoder.start(model.encode(source, attention_mask))
        _, state = decoder.step(state, target[:, 0])
        num_elements = 3 * 2 * 12 * 3 * (2 * 64 + 16)  # rows, keys and values, embed_dim, layers, positions and source
        for maximum, fits in ((num_elements, True), (num_elements - 1, False)):
            monkeypatch.setattr(decoding_graphs, "MAX_ELEMENTS", maximum)
            keys, size = state.caches[0].target.tensors[0], text_decoder._graph_size(decoder, state.caches)
            assert decoding_graphs.fits_graph(size, keys, len(state.caches)) == fits
        monkeypatch.setattr(text_decoder, "worth_replaying", lambda *_: True)
        graph = decoder.step(state, target[:, 1])[1].replay.graph
    assert graph.num_elements == num_elements
    monkeypatch.setattr(decoding_graphs.POOL, "max_elements", 2 * num_elements)
    for _ in range(3):
        decoding_graphs.POOL.give_back(decoder, graph)
    assert len(decoding_graphs.POOL.free[decoder]) == 2


@pytest.mark.usefixtures("replaying")
def test_learned_positions_limit_replayed_steps():
    model = make_model("transformer", positions="learned", max_positions=11)
    output = encode(model)
    assert len(greedy(model.decoder, output, max_tokens=11, suppress_tokens=(0, 1, 2))[0][0].tokens) == 11
    with pytest.raises(ValueError, match="positions must be below max_positions=11, got 11"):
        greedy(model.decoder, output, max_tokens=12, suppress_tokens=(0, 1, 2))


@needs_gpu
def test_graphs_are_freed_with_their_decoder():
    model = make_model("transformer")
    output = encode(model, "cuda")
    with record_attention(model) as record:
        greedy(model.decoder, output, max_tokens=7, suppress_tokens=(0, 1, 2))
    assert len(record) > 0
    assert not decoding_graphs.POOL.free.get(model.decoder)
    greedy(model.decoder, output, max_tokens=7, suppress_tokens=(0, 1, 2))
    graph = weakref.ref(decoding_graphs.POOL.free[model.decoder][0])
    del model, output, record
    gc.collect()
    assert graph() is None


def test_sizes_are_rounded_up():
    assert [decoding_graphs._round_up(n) for n in (1, 2, 3, 4, 5, 7, 12, 13, 160)] == [1, 2, 3, 4, 6, 8, 12, 16, 192]
    assert len({decoding_graphs._round_up(n) for n in range(1, 1025)}) == 20
