import pytest
import torch

from sightline.errors import SightlineError
from sightline.models.captioner import Captioner, CaptionerConfig

SIZES = {"vocab_size": 13, "embed_dim": 8, "ffn_dim": 11, "num_heads": 2, "decoder_layers": 1}


def test_averaged_regions_of_a_flipped_image_are_flipped():
    torch.manual_seed(0)
    images = {"image_size": 48, "channels": 3, "feature_dim": 5, "num_regions": 9, "backbone_channels": (3, 2, 2, 5)}
    model = Captioner(CaptionerConfig(backbone="conv4", average_flipped=True, **images, **SIZES))
    pixels = torch.randint(0, 256, (2, 3, 48, 48), dtype=torch.uint8)
    model.train()(pixels, torch.ones(2, 4, dtype=torch.int64))  # statistics of the batch norms
    with torch.no_grad():
        for training in (False, True):
            regions, flipped = map(model.train(training).regions, (pixels, pixels.flip(-1)))
            mapped = flipped.unflatten(1, (3, 3)).flip(2).flatten(1, 2)
            assert torch.allclose(mapped, regions, atol=1e-5) is not training


def test_hard_attention_has_defaults_that_other_attention_refuses():
    config = CaptionerConfig(kind="rnn_attention", hard=True, soft_share=0.2)
    assert (config.reinforce_weight, config.soft_share) == (0.02, 0.2)
    assert CaptionerConfig(kind="rnn_attention").reinforce_weight is None
    with pytest.raises(SightlineError, match="soft_share must be null without hard attention and REINFORCE, got"):
        CaptionerConfig(kind="rnn_attention", soft_share=0.2)


def test_regions_of_features_are_not_flipped():
    with pytest.raises(SightlineError, match="average_flipped must be false for backbone 'none', got true"):
        CaptionerConfig(backbone="none", average_flipped=True)
