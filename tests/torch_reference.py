"""Copy the weights of torch's modules into the corresponding modules of this package."""

import torch
from torch import nn

from sightline.attention import MultiHeadAttention
from sightline.layers import DecoderBlock, EncoderBlock, Transformer


@torch.no_grad()
def copy_attention(theirs: nn.MultiheadAttention, ours: MultiHeadAttention) -> None:
    ours.qkv.weight.copy_(theirs.in_proj_weight)
    ours.out_proj.weight.copy_(theirs.out_proj.weight)
    if theirs.in_proj_bias is not None:
        ours.qkv.bias.copy_(theirs.in_proj_bias)
        ours.out_proj.bias.copy_(theirs.out_proj.bias)


def copy_encoder_layer(theirs: nn.TransformerEncoderLayer, ours: EncoderBlock) -> None:
    copy_attention(theirs.self_attn, ours.attention)
    _copy_feed_forward(theirs, ours)
    ours.norm1.load_state_dict(theirs.norm1.state_dict())
    ours.norm2.load_state_dict(theirs.norm2.state_dict())


def copy_decoder_layer(theirs: nn.TransformerDecoderLayer, ours: DecoderBlock) -> None:
    copy_attention(theirs.self_attn, ours.attention)
    copy_attention(theirs.multihead_attn, ours.cross_attention)
    _copy_feed_forward(theirs, ours)
    ours.norm1.load_state_dict(theirs.norm1.state_dict())
    ours.norm2.load_state_dict(theirs.norm2.state_dict())
    ours.norm3.load_state_dict(theirs.norm3.state_dict())


def copy_transformer(theirs: nn.Transformer, ours: Transformer) -> None:
    for layer, block in zip(theirs.encoder.layers, ours.encoder.layers, strict=True):
        copy_encoder_layer(layer, block)
    for layer, block in zip(theirs.decoder.layers, ours.decoder.layers, strict=True):
        copy_decoder_layer(layer, block)
    ours.encoder.norm.load_state_dict(theirs.encoder.norm.state_dict())
    ours.decoder.norm.load_state_dict(theirs.decoder.norm.state_dict())


def perturb(module: nn.Module) -> None:
    """Add noise to every parameter: zero biases and unit norms would hide a missing one."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))


def input_gradients(output: torch.Tensor, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """Gradients of a weighted sum of the output."""
    weights = torch.arange(output.numel(), dtype=output.dtype, device=output.device).cos().view_as(output)
    return list(torch.autograd.grad((output * weights).sum(), inputs))


def _copy_feed_forward(theirs: nn.Module, ours: nn.Module) -> None:
    ours.mlp.fc1.load_state_dict(theirs.linear1.state_dict())
    ours.mlp.fc2.load_state_dict(theirs.linear2.state_dict())
