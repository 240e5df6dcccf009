"""State dicts with the names of other packages."""

import torch


def lite0_state():
    """EfficientNet-Lite0 with the names of `efficientnet_lite_pytorch`, with outputs of moderate size."""
    generator = torch.Generator().manual_seed(7)
    state = {}

    def add(prefix, convolution, norm, outs, ins, size):
        weight = torch.randn(outs, ins, size, size, generator=generator)
        state[f"{prefix}{convolution}.weight"] = weight * (2 / (ins * size * size)) ** 0.5
        state[f"{prefix}{norm}.weight"] = torch.rand(outs, generator=generator) + 0.5
        state[f"{prefix}{norm}.bias"] = torch.rand(outs, generator=generator)
        state[f"{prefix}{norm}.running_mean"] = torch.randn(outs, generator=generator) / 7
        state[f"{prefix}{norm}.running_var"] = torch.rand(outs, generator=generator) + 0.5
        state[f"{prefix}{norm}.num_batches_tracked"] = torch.tensor(5)

    add("", "_conv_stem", "_bn0", 32, 3, 3)
    ins = 32
    blocks = [(16, 3), *[(24, 3)] * 2, *[(40, 5)] * 2, *[(80, 3)] * 3, *[(112, 5)] * 3, *[(192, 5)] * 4, (320, 3)]
    for i, (outs, size) in enumerate(blocks):
        prefix, hidden = f"_blocks.{i}.", ins * 6 if i else ins
        if i:
            add(prefix, "_expand_conv", "_bn0", hidden, ins, 1)
        add(prefix, "_depthwise_conv", "_bn1", hidden, 1, size)
        add(prefix, "_project_conv", "_bn2", outs, hidden, 1)
        ins = outs
    add("", "_conv_head", "_bn1", 1280, ins, 1)
    return {**state, "_fc.weight": torch.zeros(3, 1280), "_fc.bias": torch.zeros(3)}
