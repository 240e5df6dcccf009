"""The cost of a recording: a model with it, and with Hugging Face's `output_attentions`, relative to the plain model.

BERT encodes a text in one call, and GPT-2 generates tokens with a key-value cache. Both run on fused attention, also
with a recording. `output_attentions` needs the eager implementation, which is another model with the same weights.
On a CPU the time of the process counts, so that other processes on the machine matter less.
"""

from collections.abc import Callable
from functools import partial

import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, PretrainedConfig, PreTrainedModel

from sightline.attention import record_attention

from .clock import Samples, alternate, cpu_seconds, timer
from .record import Report
from .suite import Settings

PROMPT = 32


def run(settings: Settings, report: Report) -> None:
    """Compare a forward pass and the generation of a text."""
    if not settings.has_peer("transformers", report):
        return
    sizes = {"n_layer": 2, "n_embd": 32, "n_head": 2} if settings.tiny else {}
    bert = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    for tokens in settings.pick(tiny=(16,), cpu=(128, 512), gpu=(128, 512)):
        compare(
            f"BERT, {tokens} tokens", BertModel, BertConfig(**bert if settings.tiny else {}), tokens, settings, report
        )
    new_tokens = settings.pick(tiny=3, cpu=64, gpu=64)
    config = GPT2Config(**sizes, bos_token_id=None, eos_token_id=None, pad_token_id=0)
    name = f"GPT-2, generate() with {new_tokens} new tokens"
    compare(name, GPT2LMHeadModel, config, PROMPT, settings, report, new_tokens)


def compare(
    name: str,
    model_class: type[PreTrainedModel],
    config: PretrainedConfig,
    tokens: int,
    settings: Settings,
    report: Report,
    new_tokens: int = 0,
) -> None:
    """Time a model without and with a recording, and with `output_attentions`."""
    torch.manual_seed(0)
    models = {}
    for implementation in ("sdpa", "eager"):
        config._attn_implementation = implementation
        models[implementation] = model_class(config).eval().to(settings.device)
    models["eager"].load_state_dict(models["sdpa"].state_dict())
    ids = torch.randint(1, 1000, (1, tokens), device=settings.device)

    @torch.no_grad()
    def forward(model: PreTrainedModel, **options: object) -> object:
        if not new_tokens:
            return model(ids, **options)
        length = {"min_new_tokens": new_tokens, "max_new_tokens": new_tokens, "do_sample": False}
        return model.generate(ids, **length, **options)

    def recorded() -> object:
        with record_attention(models["sdpa"]) as record:
            forward(models["sdpa"])
        return record

    returned = {"output_attentions": True, **({"return_dict_in_generate": True} if new_tokens else {})}
    functions = {
        "plain": partial(forward, models["sdpa"]),
        "recorded": recorded,
        "eager": partial(forward, models["eager"], **returned),
    }
    samples = measure(functions, settings)
    report.compare(f"{name}: recording", ("with a recording", samples["recorded"]), ("without", samples["plain"]))
    report.compare(f"{name}: output_attentions", ("eager", samples["eager"]), ("without", samples["plain"]))


def measure(functions: dict[str, Callable[[], object]], settings: Settings) -> dict[str, Samples]:
    """Seconds per call of each function, measured alternately."""
    rounds = settings.pick(tiny=2, cpu=15, gpu=15)
    if settings.device != "cpu":
        return alternate({name: timer(run, settings.device) for name, run in functions.items()}, rounds)
    for run in functions.values():
        run()
    return alternate({name: partial(cpu_seconds, run) for name, run in functions.items()}, rounds)
