import copy
import gc
import weakref

import pytest
import torch
from torch.testing import assert_close

from sightline.attention import record_attention
from sightline.decoding import beam, greedy, sample
from sightline.models import replay, translator
from translators import batch, make

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
SEARCHES = {
    "greedy": lambda model, memory: greedy(model, memory, most_tokens=71),
    "beam": lambda model, memory: beam(model, memory, beams=3, n_best=2, most_tokens=71),
    "beam to the end": lambda model, memory: beam(model, memory, beams=5, early=False, most_tokens=23),
    "sample": lambda model, memory: sample(
        model, memory, samples=2, most_tokens=23, generator=torch.Generator(memory.device).manual_seed(3)
    ),
}


@pytest.fixture
def replaying(monkeypatch):
    """As on a GPU: steps in fixed room; on a CPU they are run where a GPU replays them."""
    replay._FREE.clear()
    monkeypatch.setattr(translator, "worth_replaying", lambda *_: True)


def _memory(model, device):
    source, real, _ = batch()
    return model.to(device).encode(source.to(device), real.to(device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("options", [{}, {"norm": "post", "score": "cosine", "tied": "none", "positions": "learnt"}])
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
        assert all(isinstance(state, replay.Replayed) for state in states)
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
        state = model.reorder(model.reorder(state, rows.argsort(), within=True), rows.argsort().argsort(), within=True)
        logits, _ = model.step(state, target[rows, 3])
        assert_close(logits, model(source, real, target)[rows, 3], atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("replaying")
def test_a_graph_serves_the_next_batch_until_the_weights_lie_elsewhere(monkeypatch):
    model = make("transformer")
    made = []
    plain = replay._Graph.__init__
    monkeypatch.setattr(replay._Graph, "__init__", lambda self, *how: made.append(how) or plain(self, *how))
    memory = _memory(model, "cpu")
    for _ in range(3):
        greedy(model, memory, most_tokens=7)
    assert len(made) == 1
    model.words.target_table.data.mul_(2)  # learnt on, in place
    greedy(model, memory, most_tokens=7)
    assert len(made) == 1
    model.words.target_table.data = model.words.target_table.data.clone()
    greedy(model, memory, most_tokens=7)
    assert len(made) == 2
    assert len(replay._FREE[model.decoder]) == 2
    greedy(copy.deepcopy(model), memory, most_tokens=7)
    assert len(made) == 3


@pytest.mark.usefixtures("replaying")
def test_a_table_of_places_still_says_where_it_ends():
    model = make("transformer", positions="learnt", most_tokens=11)
    memory = _memory(model, "cpu")
    assert len(greedy(model, memory, most_tokens=11, never=(0, 1, 2))[0][0].tokens) == 11
    with pytest.raises(ValueError, match="positions must be below 11, the length they were learnt for, got 11"):
        greedy(model, memory, most_tokens=12, never=(0, 1, 2))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_a_graph_goes_with_its_model_and_nobody_who_watches_is_passed_by():
    model = make("transformer")
    memory = _memory(model, "cuda")
    with record_attention(model) as record:
        greedy(model, memory, most_tokens=7)
    assert len(record) > 0
    assert not replay._FREE.get(model.decoder)
    greedy(model, memory, most_tokens=7)
    graph = weakref.ref(replay._FREE[model.decoder][0])
    del model, memory, record
    gc.collect()
    assert graph() is None


def test_sizes_are_few():
    assert [replay._rounded(n) for n in (1, 2, 3, 4, 5, 7, 12, 13, 160)] == [1, 2, 3, 4, 6, 8, 12, 16, 192]
    assert len({replay._rounded(n) for n in range(1, 1025)}) == 20
