import pytest
import torch
from hypothesis import settings

settings.register_profile("sightline", deadline=None, derandomize=True)
settings.load_profile("sightline")


@pytest.fixture(
    params=["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
)
def device(request):
    return request.param


@pytest.fixture(autouse=True)
def _same_numbers_every_time():
    torch.manual_seed(0)
