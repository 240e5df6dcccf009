"""State dicts as others write them."""

import torch


def lite0_state():
    """EfficientNet-Lite0 in the naming of `efficientnet_lite_pytorch`, with weights that keep a signal alive."""
    generator = torch.Generator().manual_seed(7)
    state = {}

    def step(at, convolution, norm, outs, ins, size):
        weight = torch.randn(outs, ins, size, size, generator=generator)
        state[f"{at}{convolution}.weight"] = weight * (2 / (ins * size * size)) ** 0.5
        state[f"{at}{norm}.weight"] = torch.rand(outs, generator=generator) + 0.5
        state[f"{at}{norm}.bias"] = torch.rand(outs, generator=generator)
        state[f"{at}{norm}.running_mean"] = torch.randn(outs, generator=generator) / 7
        state[f"{at}{norm}.running_var"] = torch.rand(outs, generator=generator) + 0.5
        state[f"{at}{norm}.num_batches_tracked"] = torch.tensor(5)

    step("", "_conv_stem", "_bn0", 32, 3, 3)
    ins = 32
    wanted = [(16, 3), *[(24, 3)] * 2, *[(40, 5)] * 2, *[(80, 3)] * 3, *[(112, 5)] * 3, *[(192, 5)] * 4, (320, 3)]
    for number, (outs, size) in enumerate(wanted):
        at, middle = f"_blocks.{number}.", ins * 6 if number else ins
        if number:
            step(at, "_expand_conv", "_bn0", middle, ins, 1)
        step(at, "_depthwise_conv", "_bn1", middle, 1, size)
        step(at, "_project_conv", "_bn2", outs, middle, 1)
        ins = outs
    step("", "_conv_head", "_bn1", 1280, ins, 1)
    return {**state, "_fc.weight": torch.zeros(3, 1280), "_fc.bias": torch.zeros(3)}
