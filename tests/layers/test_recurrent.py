import pytest
import torch
from torch import nn
from torch.testing import assert_close

from sightline.layers import RNN, RecurrentEncoder

B, T, INPUT_SIZE, HIDDEN_SIZE = 3, 7, 5, 6


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("num_layers", [1, 2])
def test_bidirectional_encoder_equals_torch_on_packed_sequences(cell, num_layers):
    ours = RecurrentEncoder(INPUT_SIZE, HIDDEN_SIZE, cell=cell, num_layers=num_layers)
    torch_class = nn.GRU if cell == "gru" else nn.LSTM
    theirs = torch_class(INPUT_SIZE, HIDDEN_SIZE // 2, num_layers, batch_first=True, bidirectional=True)
    with torch.no_grad():
        for i in range(num_layers):
            for layers, suffix in ((ours.forwards, ""), (ours.backwards, "_reverse")):
                for name, parameter in layers[i].cells.named_parameters():
                    getattr(theirs, name.replace("_l0", f"_l{i}") + suffix).copy_(parameter)
    lengths = torch.tensor([T, 3, 1])
    attention_mask = torch.arange(T) < lengths[:, None]
    x = torch.randn(B, T, INPUT_SIZE)
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
    expected, hidden = theirs(packed)
    expected, _ = nn.utils.rnn.pad_packed_sequence(expected, batch_first=True)
    outputs, final = ours(x, attention_mask)
    assert_close(outputs * attention_mask[..., None], expected, atol=1e-5, rtol=1e-5)
    hidden = hidden[0] if cell == "lstm" else hidden
    assert_close(final, torch.cat((hidden[-2], hidden[-1]), -1), atol=1e-5, rtol=1e-5)


def test_unidirectional_encoder_ends_at_the_last_token():
    encoder = RecurrentEncoder(INPUT_SIZE, HIDDEN_SIZE, bidirectional=False)
    outputs, final = encoder(torch.randn(2, T, INPUT_SIZE), torch.arange(T) < torch.tensor([[T], [3]]))
    assert_close(final, torch.stack((outputs[0, T - 1], outputs[1, 2])))


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_steps_with_a_hidden_state_equal_one_call_also_under_autocast(cell):
    rnn, x = RNN(INPUT_SIZE, HIDDEN_SIZE, cell=cell, num_layers=2), torch.randn(B, T, INPUT_SIZE)
    outputs, hidden = rnn(x)
    assert len(hidden) == rnn.num_states
    first, state = rnn(x[:, :3])
    with torch.autocast("cpu", torch.bfloat16):
        second, state = rnn(x[:, 3:], state)
    assert second.dtype == torch.float32
    assert_close(torch.cat((first, second), 1), outputs)
    assert_close(state, hidden)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RNN(3, 5, cell="gur"), "cell must be one of gru, lstm, got 'gur'; did you mean 'gru'?"),
        (lambda: RNN(3, 5, num_layers=0), "num_layers must be an integer of at least 1, got 0"),
        (lambda: RecurrentEncoder(3, 5), "hidden_size must be even where the encoder is bidirectional, got 5"),
    ],
)
def test_invalid_input_raises(make, message):
    with pytest.raises(ValueError, match=message):
        make()
