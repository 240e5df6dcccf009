"""The decoding methods with special tokens for tests: padding is 0, BOS 1 and EOS 2."""

from functools import partial, wraps

from sightline import decoding
from sightline.decoding import DecodingOptions

PAD, BOS, EOS = range(3)


def with_special_tokens(method):
    """The method with the fields of its options as keyword arguments."""

    @wraps(method)
    def decode(model, encoder_output, *, max_tokens=256, suppress_tokens=(PAD, BOS), **search):
        options = DecodingOptions(bos=BOS, eos=EOS, suppress_tokens=suppress_tokens, max_tokens=max_tokens)
        return method(model, encoder_output, options, **search)

    return decode


greedy, beam_search, sample = map(with_special_tokens, (decoding.greedy, decoding.beam_search, decoding.sample))
decoder_inputs = partial(decoding.decoder_inputs, bos=BOS, pad=PAD)
