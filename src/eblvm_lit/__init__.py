"""Energy-based latent variable models on Hydra and PyTorch Lightning.

What is worth using without either is named here, and imported when it is first asked for: ``import eblvm_lit`` itself
loads nothing.

Example:
    >>> import torch
    >>> from eblvm_lit import GRBM, ExactScore
    >>> ExactScore(GRBM(v_dim=2, h_dim=3))(torch.zeros(5, 2)).shape
    torch.Size([5, 2])
"""

import os

import lazy_loader

__version__ = "0.3.0"

if "EBLVM_LIT_STARTING" in os.environ:  # also while it imports, a process of a run ends with the one that starts it
    from eblvm_lit.utils.orphans import end_with_parent

    end_with_parent()

# __init__.pyi lists the public names: one list for imports, editors and type checkers.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
