import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from sightline.attention import record_attention
from sightline.decoding import beam_search, greedy, sample
from sightline.models import graphed_decoder as replay
from sightline.models import translator
from translators import batch, make

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
SEARCHES = {
    "greedy": lambda model, memory: greedy(model, memory, max_tokens=71),
    "beam": lambda model, memory: beam_search(model, memory, num_beams=3, n_best=2, max_tokens=71),
    "beam to the end": lambda model, memory: beam_search(
        model, memory, num_beams=5, early_stopping=False, max_tokens=23
    ),
    "sample": lambda model, memory: sample(
        model, memory, num_samples=2, max_tokens=23, generator=torch.Generator(memory.device).manual_seed(3)
    ),
}


@pytest.fixture
def replaying(monkeypatch):
    """As on a GPU: steps in fixed room; on a CPU they are run where a GPU replays them."""
    replay.POOL.free.clear()
    monkeypatch.setattr(translator, "worth_replaying", lambda *_: replay.unwatched())


def _memory(model, device):
    source, real, _ = batch()
    return model.to(device).encode(source.to(device), real.to(device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize(
    "options", [{}, {"norm": "post", "score": "cosine", "tie_embeddings": "none", "positions": "learned"}]
)
def test_every_search_finds_what_it_found_before(search, options, device, monkeypatch):
    model = make("transformer", **options)
    memory = _memory(model, device)
    monkeypatch.setattr(translator, "worth_replaying", lambda *_: False)
    plain = SEARCHES[search](model, memory)
    monkeypatch.setattr(translator, "worth_replaying", lambda *_: True)
    for _ in range(2):  # recorded, and replayed
        found = SEARCHES[search](model, memory)
        assert [[one.tokens for one in ones] for ones in found] == [[one.tokens for one in ones] for ones in plain]
        scores = [torch.tensor([one.score for ones in some for one in ones]) for some in (found, plain)]
        assert_close(*scores, atol=1e-3, rtol=1e-4)


@pytest.mark.usefixtures("replaying")
def test_two_batches_in_turns_do_not_meet():
    model, (source, real, target) = make("transformer"), batch()
    with torch.inference_mode():
        states = [model.start(model.encode(source.roll(i, 0), real.roll(i, 0))) for i in range(2)]
        logits = [[], []]
        for tokens in target.T:
            for i in range(2):
                made, states[i] = model.step(states[i], tokens.roll(i, 0))
                logits[i].append(made)
        assert all(state.replay is not None for state in states)
        assert states[0].replay.graph is not states[1].replay.graph
        for i in range(2):
            whole = model(source.roll(i, 0), real.roll(i, 0), target.roll(i, 0))
            assert_close(torch.stack(logits[i], 1), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("replaying")
def test_rows_may_change_places_twice_and_multiply_between_steps():
    model, (source, real, target) = make("transformer"), batch()
    rows = torch.tensor([2, 0, 0, 1, 2, 1, 1, 0])
    with torch.inference_mode():
        state = model.start(model.encode(source, real))
        for tokens in target.T[:3]:
            _, state = model.step(state, tokens)
        state = model.reorder(state, rows)
        state = model.reorder(
            model.reorder(state, rows.argsort(), same_source=True), rows.argsort().argsort(), same_source=True
        )
        logits, _ = model.step(state, target[rows, 3])
        assert_close(logits, model(source, real, target)[rows, 3], atol=1e-5, rtol=1e-5)


@pytest.fixture
def made(monkeypatch):
    """How many rows each graph has that is recorded."""
    rows = []
    plain = replay._GraphedStep.__init__
    monkeypatch.setattr(
        replay._GraphedStep, "__init__", lambda self, *how: rows.append(how[1].size.rows) or plain(self, *how)
    )
    return rows


@pytest.mark.usefixtures("replaying")
def test_a_graph_serves_the_next_batch_until_the_weights_lie_elsewhere(made):
    model = make("transformer")
    memory = _memory(model, "cpu")
    for _ in range(3):
        greedy(model, memory, max_tokens=7)
    assert made == [3]
    model.words.target_table.data.mul_(2)  # learned on, in place
    greedy(model, memory, max_tokens=7)
    assert made == [3]
    model.words.target_table.data = model.words.target_table.data.clone()
    greedy(model, memory, max_tokens=7)
    assert made == [3, 3]
    assert len(replay.POOL.free[model.decoder]) == 1  # the first serves no more
    greedy(copy.deepcopy(model), memory, max_tokens=7)
    assert made == [3, 3, 3]


@pytest.mark.usefixtures("replaying")
def test_sentences_that_end_leave_the_graph_and_few_rows_have_one_of_their_own(made):
    model, (source, real, target) = make("transformer"), batch()
    with torch.inference_mode():
        state = model.start(model.encode(source.repeat(9, 1), real.repeat(9, 1)))
        for tokens in target.T[:2]:
            _, state = model.step(state, tokens.repeat(9))
        state = model.reorder(state, torch.tensor([4, 26, 3, 0]))
        _, state = model.step(state, target[[1, 2, 0, 0], 2])
        assert made == [32]
        state = model.reorder(state, torch.tensor([1]))
        logits, state = model.step(state, target[[2], 3])
        assert made == [32, 1]
        assert_close(logits, model(source, real, target)[[2], 3], atol=1e-5, rtol=1e-5)
        with pytest.raises(ValueError, match=r"tokens must have shape \(1,\), got \(2,\)"):
            model.step(state, target[:2, 4])


@pytest.mark.usefixtures("replaying")
def test_who_begins_to_watch_or_leaves_inference_mode_sees_every_step():
    model, (source, real, target) = make("transformer"), batch()
    whole = model(source, real, target)
    with torch.inference_mode():
        state = model.start(model.encode(source, real))
        for tokens in target.T[:3]:
            _, state = model.step(state, tokens)
        assert state.replay is not None
        with record_attention(model) as record:
            logits, state = model.step(state, target[:, 3])
    assert_close(logits, whole[:, 3], atol=1e-5, rtol=1e-5)
    assert len(record.of("cross")) == len(model.decoder.layers)
    with torch.no_grad():
        logits, _ = model.step(state, target[:, 4])
    assert_close(logits, whole[:, 4], atol=1e-5, rtol=1e-5)


def test_what_a_graph_may_not_be_made_of():
    model = make("transformer")
    writer = replay.Writer(model.words, model.target_positions, model.decoder)
    assert not replay.hooked(writer)
    assert replay.hooked(writer._replace(decoder=copy.deepcopy(model.decoder).train()))
    hook = model.decoder.layers[1].attention.register_forward_hook(lambda *_: None)
    assert replay.hooked(writer)
    hook.remove()
    assert not replay.hooked(writer)
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert replay.hooked(writer)
    hook.remove()
    assert not replay.unwatched()
    with torch.inference_mode():
        assert replay.unwatched()
        with record_attention(model):
            assert not replay.unwatched()
            model(*batch())


def test_a_graph_is_no_larger_than_it_may_be(monkeypatch):
    model, (source, real, target) = make("transformer"), batch()
    writer = replay.Writer(model.words, model.target_positions, model.decoder)
    with torch.inference_mode():
        state = model.start(model.encode(source, real))
        _, state = model.step(state, target[:, 0])
        numbers = 3 * 2 * 12 * 3 * (2 * 64 + 16)  # rows, keys and values of a width of 12, layers, places and source
        for most, fits in ((numbers, True), (numbers - 1, False)):
            monkeypatch.setattr(replay, "MAX_ELEMENTS", most)
            assert replay.small(writer, state.caches) == fits
        graph = replay.Replay(writer, state.caches, real).graph
    assert graph.num_elements == numbers
    monkeypatch.setattr(replay.POOL, "max_elements", 2 * numbers)
    for _ in range(3):
        replay.POOL.give_back(model.decoder, graph)
    assert len(replay.POOL.free[model.decoder]) == 2


@pytest.mark.usefixtures("replaying")
def test_a_table_of_places_still_says_where_it_ends():
    model = make("transformer", positions="learned", max_positions=11)
    memory = _memory(model, "cpu")
    assert len(greedy(model, memory, max_tokens=11, suppress_tokens=(0, 1, 2))[0][0].tokens) == 11
    with pytest.raises(ValueError, match="positions must be below max_positions=11, got 11"):
        greedy(model, memory, max_tokens=12, suppress_tokens=(0, 1, 2))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_a_graph_goes_with_its_model_and_nobody_who_watches_is_passed_by():
    model = make("transformer")
    memory = _memory(model, "cuda")
    with record_attention(model) as record:
        greedy(model, memory, max_tokens=7)
    assert len(record) > 0
    assert not replay.POOL.free.get(model.decoder)
    greedy(model, memory, max_tokens=7)
    graph = weakref.ref(replay.POOL.free[model.decoder][0])
    del model, memory, record
    gc.collect()
    assert graph() is None


def test_sizes_are_few():
    assert [replay._round_up(n) for n in (1, 2, 3, 4, 5, 7, 12, 13, 160)] == [1, 2, 3, 4, 6, 8, 12, 16, 192]
    assert len({replay._round_up(n) for n in range(1, 1025)}) == 20
