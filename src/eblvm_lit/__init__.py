"""Energy-based latent variable models on Hydra and PyTorch Lightning.

This module exports the classes and functions that are meant for Python code without a configuration or a Trainer. Each
is imported when it is first used: ``import eblvm_lit`` itself loads nothing.

Example:
    >>> import torch
    >>> from eblvm_lit import GRBM, ExactScore
    >>> ExactScore(GRBM(v_dim=2, h_dim=3))(torch.zeros(5, 2)).shape
    torch.Size([5, 2])
"""

import os

import lazy_loader

__version__ = "0.3.0"

# Child processes of a run exit when their parent dies, even while they are still importing.
if "EBLVM_LIT_STARTING" in os.environ:
    from eblvm_lit.utils.orphans import end_with_parent

    end_with_parent()

# The file __init__.pyi lists the public names, so that imports, editors and type checkers use the same list.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
