import itertools
import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from sightline import record_attention
from sightline.decoding import beam_search, decoder_inputs, greedy, sample
from sightline.decoding.sampling import candidates
from translators import KINDS, TARGET_WORDS, attends, batch, make

BEGIN, END, A, C = 1, 2, 3, 4


@dataclass
class Sentences:
    """A memory for the toys: one table of logits (words, words) for each sentence."""

    tables: torch.Tensor

    def __len__(self):
        return len(self.tables)

    device = torch.device("cpu")


class Chain:
    """A toy: the next word depends on the last one alone. Counts how many rows it was asked for."""

    rows = 0

    def start(self, memory):
        return memory.tables

    def step(self, state, tokens):
        self.rows += len(tokens)
        return state[torch.arange(len(tokens)), tokens].clone(), state

    def reorder(self, state, indices, *, same_source=False):
        if same_source:
            assert torch.equal(state[indices].nan_to_num(0.5), state.nan_to_num(0.5))
        return state[indices]


def chain(*moves):
    """One table for each {(from, to): probability}; from these words nothing else is possible."""
    tables = torch.zeros(len(moves), 7, 7)
    for table, steps in zip(tables, moves, strict=True):
        table[[here for here, _ in steps]] = float("-inf")
        for (here, there), chance in steps.items():
            table[here, there] = math.log(chance)
    return Sentences(tables)


TRAP = {(BEGIN, A): 0.6, (BEGIN, C): 0.4, (A, 5): 0.5, (A, 6): 0.5, (C, 5): 1.0, (5, END): 1.0, (6, END): 1.0}
"""The likelier first word leads to the less likely sentence: 0.3 against 0.4."""


def random_tables(sentences=5, words=7, seed=0):
    return Sentences(2 * torch.randn(sentences, words, words, generator=torch.Generator().manual_seed(seed)))


def test_greedy_takes_the_likeliest_word_and_ends_at_the_end():
    memory = chain(TRAP, {(BEGIN, END): 1.0})
    first, empty = greedy(Chain(), memory)
    assert first[0].tokens[0] == A
    assert first[0].score == pytest.approx(math.log(0.3), abs=1e-5)
    assert first[0].normalized_score == pytest.approx(math.log(0.3) / 3, abs=1e-5)
    assert first[0].finished
    assert empty[0].tokens == ()
    assert empty[0].score == pytest.approx(0, abs=1e-5)


def test_beams_find_what_greedy_misses():
    (best,) = beam_search(Chain(), chain(TRAP), num_beams=2)
    assert best[0].tokens == (C, 5)
    assert best[0].score == pytest.approx(math.log(0.4), abs=1e-5)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
def test_wide_beams_find_the_best_of_all(early, penalty):
    words, most = 7, 4
    memory = random_tables(words=words)
    chances = memory.tables.log_softmax(-1)
    open_words = [word for word in range(words) if word not in (0, BEGIN, END)]
    found = beam_search(
        Chain(), memory, num_beams=400, n_best=3, length_penalty=penalty, max_tokens=most, early_stopping=early
    )
    for table, hypotheses in zip(chances, found, strict=True):
        scored = []
        for length in range(most):
            for words_between in itertools.product(open_words, repeat=length):
                path = [BEGIN, *words_between, END]
                total = sum(float(table[a, b]) for a, b in itertools.pairwise(path))
                scored.append((total / (length + 1) ** penalty, words_between))
        expected = sorted(scored, reverse=True)[:3]
        assert [one.tokens for one in hypotheses] == [words_between for _, words_between in expected]
        assert [one.normalized_score for one in hypotheses] == pytest.approx([score for score, _ in expected], abs=1e-4)


def test_length_penalty_chooses_between_short_and_long():
    memory = chain({(BEGIN, END): 0.3, (BEGIN, A): 0.7, (A, C): 0.6, (A, 5): 0.4, (C, END): 0.6, (C, 6): 0.4})
    assert beam_search(Chain(), memory, num_beams=3, length_penalty=0.0)[0][0].tokens == ()
    assert beam_search(Chain(), memory, num_beams=3, length_penalty=1.0)[0][0].tokens == (A, C)


def test_search_that_is_not_early_may_find_better():
    """Two beams are full after the first end of each; the best sentence needs a step more."""
    memory = chain({(BEGIN, END): 0.3, (BEGIN, A): 0.7, (A, END): 0.3, (A, C): 0.7, (C, 5): 1.0, (5, END): 1.0})
    hasty = beam_search(Chain(), memory, num_beams=2, early_stopping=True)[0][0]
    patient = beam_search(Chain(), memory, num_beams=2, early_stopping=False, max_tokens=9)[0][0]
    assert len(hasty.tokens) < len(patient.tokens)
    assert patient.tokens == (A, C, 5)
    assert patient.normalized_score > hasty.normalized_score


@pytest.mark.parametrize("kind", KINDS)
def test_one_beam_is_greedy(kind):
    model, (source, real, _) = make(kind), batch()
    memory = model.encode(source, real)
    for one, other in zip(
        greedy(model, memory, max_tokens=11), beam_search(model, memory, num_beams=1, max_tokens=11), strict=True
    ):
        assert one[0].tokens == other[0].tokens
        assert one[0].score == pytest.approx(other[0].score, abs=1e-4)
        assert one[0].finished == other[0].finished


@pytest.mark.parametrize("kind", KINDS)
def test_best_come_first_distinct_and_with_the_score_the_model_gives_them(kind):
    model, (source, real, _) = make(kind), batch()
    found = beam_search(model, model.encode(source, real), num_beams=5, n_best=4, max_tokens=11)
    for row, hypotheses in enumerate(found):
        assert len({one.tokens for one in hypotheses}) == 4
        keys = [(one.finished, one.normalized_score) for one in hypotheses]
        assert keys == sorted(keys, reverse=True)
        target = decoder_inputs(hypotheses)
        with torch.no_grad():
            taught = model(source[row].expand(4, -1), real[row].expand(4, -1), target).log_softmax(-1)
        for one, chances in zip(hypotheses, taught, strict=True):
            whole = [*one.tokens, END] if one.finished else one.tokens
            score = sum(float(chances[place, word]) for place, word in enumerate(whole))
            assert one.score == pytest.approx(score, abs=1e-4)
            assert one.normalized_score == pytest.approx(score / len(whole), abs=1e-4)
            assert not {0, BEGIN, END} & set(one.tokens)


@pytest.mark.parametrize("search", [greedy, beam_search])
@pytest.mark.parametrize("kind", ["transformer", "transformer cosine untied", "rnn none", "rnn general"])
def test_a_sentence_is_decoded_the_same_alone_and_in_a_batch(search, kind):
    model, (source, real, _) = make(kind), batch()
    with torch.no_grad():
        (model.words.output_table if kind.endswith("untied") else model.words.target_table)[END] *= 3  # some end soon
    together = search(model, model.encode(source, real), max_tokens=17)
    for row, length in enumerate(real.sum(1).tolist()):
        (alone,) = search(
            model, model.encode(source[row : row + 1, :length], real[row : row + 1, :length]), max_tokens=17
        )
        assert alone[0].tokens == together[row][0].tokens
        assert alone[0].score == pytest.approx(together[row][0].score, abs=1e-4)


@pytest.mark.parametrize("beams", [2, 3])
def test_chains_are_decoded_the_same_alone_and_in_a_batch(beams):
    """Sentences of very different length, so that rows are dropped at many different times."""
    memory = random_tables(sentences=41, words=67)
    memory.tables[:, :, END] += torch.linspace(0, 6, 41)[:, None]
    for search in (greedy, lambda model, memory: beam_search(model, memory, num_beams=beams, n_best=2)):
        together = search(Chain(), memory)
        assert len({len(hypotheses[0].tokens) for hypotheses in together}) > 5
        assert together == [search(Chain(), Sentences(table[None]))[0] for table in memory.tables]


def test_what_is_finished_costs_nothing_more():
    short, long = {(BEGIN, END): 0.9, (BEGIN, A): 0.1, (A, END): 1.0}, {(BEGIN, A): 1.0, (A, A): 1.0}
    model, memory = Chain(), chain(*[short] * 99, long)
    greedy(model, memory, max_tokens=50)
    assert model.rows == 100 + 49
    model = Chain()
    beam_search(model, memory, num_beams=2, max_tokens=50)
    assert model.rows == 100 + 2 * 100 + 2 * 48


@pytest.mark.parametrize("search", [greedy, beam_search, sample])
def test_what_never_ends_is_cut_off(search):
    ((best, *_),) = search(Chain(), chain({(BEGIN, A): 1.0, (A, A): 1.0}), max_tokens=5)
    assert best.tokens == (A,) * 5
    assert not best.finished
    assert best.normalized_score == pytest.approx(0, abs=1e-4)


def test_finished_hypotheses_come_before_those_cut_off():
    memory = chain({(BEGIN, A): 0.9, (BEGIN, C): 0.1, (A, A): 1.0, (C, END): 1.0})
    (hypotheses,) = beam_search(Chain(), memory, num_beams=2, n_best=2, max_tokens=6)
    assert [one.tokens for one in hypotheses] == [(C,), (A,) * 6]
    assert hypotheses[1].normalized_score > hypotheses[0].normalized_score


def test_a_small_vocabulary_serves_many_beams():
    (hypotheses,) = beam_search(Chain(), random_tables(1), num_beams=50, n_best=50, max_tokens=2)
    assert len({one.tokens for one in hypotheses}) == len(hypotheses) == 1 + 4 + 16
    assert all(math.isfinite(one.score) for one in hypotheses)


@pytest.mark.parametrize("search", [greedy, beam_search, sample])
def test_no_sentences_are_no_hypotheses(search):
    assert search(Chain(), Sentences(torch.zeros(0, 7, 7))) == []


@pytest.mark.parametrize("search", [greedy, beam_search])
def test_a_model_that_says_nothing_sensible_still_gives_a_hypothesis(search):
    found = search(Chain(), Sentences(torch.full((2, 7, 7), float("nan"))), max_tokens=3)
    assert [len(hypotheses) for hypotheses in found] == [1, 1]


@pytest.mark.parametrize("search", [greedy, beam_search, sample])
def test_some_words_are_never_written(search):
    memory = chain({(BEGIN, A): 0.9, (BEGIN, C): 0.1, (A, END): 1.0, (C, END): 1.0})
    ((best, *_),) = search(Chain(), memory, suppress_tokens=(0, BEGIN, A))
    assert best.tokens == (C,)
    assert best.score == pytest.approx(math.log(0.1), abs=1e-4)  # the model's own, as if nothing were forbidden


def test_top_k_and_top_p_cut_off_the_unlikely():
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()
    chances, ids = candidates(logits, top_k=2)
    assert ids.tolist() == [[1, 3]]
    assert_close(chances, torch.tensor([[4 / 7, 3 / 7]]))
    chances, ids = candidates(logits, top_p=0.69)
    assert ids.tolist() == [[1, 3, 2, 0]]
    assert_close(chances, torch.tensor([[0.4, 0.3, 0.0, 0.0]]))
    assert (candidates(logits, top_p=0.71)[0] > 0).sum() == 3
    assert (candidates(logits, top_p=1e-9)[0] > 0).sum() == 1
    assert (candidates(logits, top_k=9, top_p=1.0)[0] > 0).sum() == 4


def test_samples_follow_the_model_s_chances():
    memory = chain({(BEGIN, A): 0.6, (BEGIN, C): 0.3, (BEGIN, 5): 0.1, **{(word, END): 1.0 for word in (A, C, 5)}})

    def shares(**options):
        generator = torch.Generator().manual_seed(0)
        (found,) = sample(Chain(), memory, num_samples=1000, generator=generator, **options)
        return [sum(one.tokens == (word,) for one in found) / 1000 for word in (A, C, 5)]

    assert shares() == pytest.approx([0.6, 0.3, 0.1], abs=0.04)
    assert shares(temperature=0.5) == pytest.approx([0.36 / 0.46, 0.09 / 0.46, 0.01 / 0.46], abs=0.04)
    assert shares(top_k=2) == pytest.approx([2 / 3, 1 / 3, 0], abs=0.04)
    assert shares(top_p=0.5) == [1, 0, 0]
    assert shares() == shares()


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-300])
def test_the_coldest_sample_is_greedy(temperature):
    memory = chain({(BEGIN, A): 0.6, (BEGIN, C): 0.4, (A, END): 1.0, (C, END): 1.0})
    (found,) = sample(Chain(), memory, num_samples=50, temperature=temperature)
    assert {one.tokens for one in found} == {(A,)}
    (found,) = sample(Chain(), memory, num_samples=50, temperature=temperature, suppress_tokens=(0, BEGIN, A))
    assert {one.tokens for one in found} == {(C,)}


def test_samples_come_best_first_for_each_sentence():
    found = sample(Chain(), random_tables(3), num_samples=7, max_tokens=9)
    assert [len(hypotheses) for hypotheses in found] == [7, 7, 7]
    for hypotheses in found:
        keys = [(one.finished, one.normalized_score) for one in hypotheses]
        assert keys == sorted(keys, reverse=True)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if attends(kind)])
def test_attention_of_every_hypothesis_comes_back_and_is_that_of_the_cached_steps(kind):
    model, (source, real, _) = make(kind), batch()
    found = beam_search(model, model.encode(source, real), num_beams=3, n_best=2, max_tokens=9)
    for row, hypotheses in enumerate(found):
        for one in hypotheses:
            target = decoder_inputs([one])
            with torch.no_grad(), record_attention(model) as taught:
                model(source[row : row + 1], real[row : row + 1], target)
            with torch.no_grad(), record_attention(model) as cached:
                state = model.start(model.encode(source[row : row + 1], real[row : row + 1]))
                for tokens in target.T:
                    _, state = model.step(state, tokens)
            for name in taught.names():
                whole = taught[name].weights
                rows = [
                    F.pad(seen.weights, (0, whole.shape[3] - seen.weights.shape[3]))
                    for seen in cached
                    if seen.name == name
                ]
                assert_close(torch.cat(rows, 2), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["transformer", "rnn general"])
def test_a_search_that_is_watched_finds_the_same(kind):
    model, (source, real, _) = make(kind), batch()
    memory = model.encode(source, real)
    alone = beam_search(model, memory, num_beams=3, n_best=3, max_tokens=9)
    with record_attention(model) as record:
        watched = beam_search(model, memory, num_beams=3, n_best=3, max_tokens=9)
    assert [[one.tokens for one in ones] for ones in watched] == [[one.tokens for one in ones] for ones in alone]
    assert {seen.kind for seen in record} == ({"cross"} if kind.startswith("rnn") else {"decoder", "cross"})
    if kind == "transformer":
        assert record.maps[-1].cache_reorders > 0  # whoever joins the steps must know that rows changed places


def test_targets_begin_with_begin_and_are_padded():
    found = [hypotheses[0] for hypotheses in greedy(Chain(), chain(TRAP, {(BEGIN, END): 1.0}))]
    targets = decoder_inputs(found)
    assert targets.shape == (2, 3)
    assert targets[:, 0].tolist() == [BEGIN, BEGIN]
    assert targets[1].tolist() == [BEGIN, 0, 0]
    assert decoder_inputs([]).shape == (0, 1)


def test_a_training_model_does_not_decode():
    model, (source, real, _) = make("transformer").train(), batch()
    with pytest.raises(ValueError, match=r"model must be in eval mode.*call model\.eval\(\) first"):
        greedy(model, model.encode(source, real))


def test_decoding_works_in_inference_mode_and_leaves_the_model_trainable():
    model, (source, real, target) = make("transformer"), batch()
    plain = beam_search(model, model.encode(source, real), max_tokens=300, suppress_tokens=(0, BEGIN, END))
    model = make("transformer")
    with torch.inference_mode():  # so long that positions grow
        assert (
            beam_search(model, model.encode(source, real), max_tokens=300, suppress_tokens=(0, BEGIN, END))[0][0].tokens
            == plain[0][0].tokens
        )
    model.train()(source, real, target).sum().backward()
    assert model.words.target_table.grad.shape[0] == TARGET_WORDS


@pytest.mark.parametrize(
    ("search", "options", "message"),
    [
        (greedy, {"max_tokens": 0}, "max_tokens must be an integer of at least 1, got 0"),
        (greedy, {"max_tokens": 1 << 20}, "max_tokens must be at most 16,384"),
        (beam_search, {"num_beams": 0}, "num_beams must be an integer of at least 1, got 0"),
        (beam_search, {"num_beams": 1 << 20}, "num_beams must be at most 1,024"),
        (beam_search, {"num_beams": 2, "n_best": 3}, "n_best must be at most num_beams=2, got 3; raise num_beams"),
        (beam_search, {"length_penalty": -1.0}, "length_penalty must be at least 0 and finite, got -1.0"),
        (sample, {"temperature": 0.0}, "temperature must be above 0 and finite, got 0.0; use greedy instead of 0"),
        (sample, {"top_k": 0}, "top_k must be an integer of at least 1, got 0"),
        (sample, {"top_p": 1.5}, "top_p must be above 0 and at most 1, got 1.5"),
        (sample, {"num_samples": 0}, "num_samples must be an integer of at least 1, got 0"),
    ],
)
def test_impossible_searches_are_refused(search, options, message):
    with pytest.raises(ValueError, match=message):
        search(Chain(), chain(TRAP), **options)
