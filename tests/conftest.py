"""What the tests share."""

import os

# Everything here is small: threads only wait for each other. Set before torch is loaded, and inherited by subprocesses.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch


@pytest.fixture
def float64():
    """Double precision, so that identities are told from approximations; and a fixed seed."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
