"""Energy-based latent variable models on Hydra and PyTorch Lightning.

What is worth using without either is named here, and imported when it is first asked for: ``import eblvm_lit`` itself
loads nothing.

Example:
    >>> import torch
    >>> from eblvm_lit import GRBM, ExactScore
    >>> ExactScore(GRBM(v_dim=2, h_dim=3))(torch.zeros(5, 2)).shape
    torch.Size([5, 2])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers; the table below is what is used
    from eblvm_lit.data.digits import Digits
    from eblvm_lit.data.toy import Checkerboard
    from eblvm_lit.divergences.fisher import Fisher
    from eblvm_lit.divergences.kl import IWAE, KL
    from eblvm_lit.energies.base import ConditionalEnergy, Energy, MarginalEnergy, VisibleEnergy
    from eblvm_lit.energies.deep import DeepEnergy, DeepLatentEnergy, DeepVectorEnergy
    from eblvm_lit.energies.gaussian import GaussianLatentModel
    from eblvm_lit.energies.grbm import GRBM
    from eblvm_lit.errors import ConfigError, DataError, EblvmError
    from eblvm_lit.evaluation.ais import AIS
    from eblvm_lit.evaluation.likelihood import exact_log_partition
    from eblvm_lit.functional import bind, params_of
    from eblvm_lit.hypergradients.base import BilevelProblem
    from eblvm_lit.hypergradients.direct import Direct
    from eblvm_lit.hypergradients.implicit import Implicit
    from eblvm_lit.hypergradients.unroll import Unroll
    from eblvm_lit.networks.conv_encoder import ConvEncoder
    from eblvm_lit.networks.mlp import MLP
    from eblvm_lit.networks.resnet import ResNet
    from eblvm_lit.objectives.base import Objective
    from eblvm_lit.objectives.dsm import DSM
    from eblvm_lit.objectives.ksd import KSD
    from eblvm_lit.objectives.mdsm import MDSM
    from eblvm_lit.objectives.sm import SM
    from eblvm_lit.objectives.ssm import SSM
    from eblvm_lit.optimizers.adam import Adam
    from eblvm_lit.optimizers.sgd import SGD
    from eblvm_lit.posteriors.base import Posterior
    from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
    from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior, NetworkGaussianPosterior
    from eblvm_lit.pretrained_models.loading import pretrained
    from eblvm_lit.samplers.annealed_langevin import AnnealedLangevin
    from eblvm_lit.samplers.gibbs import Gibbs
    from eblvm_lit.samplers.langevin import Langevin
    from eblvm_lit.scores.bilevel import BilevelScore
    from eblvm_lit.scores.exact import ExactScore
    from eblvm_lit.scores.importance import ImportanceScore
    from eblvm_lit.scores.variational import VaES, vages_product

__version__ = "0.1.0"

# Where each public name lives.
MODULES = {
    "data.digits": ("Digits",),
    "data.toy": ("Checkerboard",),
    "divergences.fisher": ("Fisher",),
    "divergences.kl": ("IWAE", "KL"),
    "energies.base": ("ConditionalEnergy", "Energy", "MarginalEnergy", "VisibleEnergy"),
    "energies.deep": ("DeepEnergy", "DeepLatentEnergy", "DeepVectorEnergy"),
    "energies.gaussian": ("GaussianLatentModel",),
    "energies.grbm": ("GRBM",),
    "errors": ("ConfigError", "DataError", "EblvmError"),
    "evaluation.ais": ("AIS",),
    "evaluation.likelihood": ("exact_log_partition",),
    "functional": ("bind", "params_of"),
    "hypergradients.base": ("BilevelProblem",),
    "hypergradients.direct": ("Direct",),
    "hypergradients.implicit": ("Implicit",),
    "hypergradients.unroll": ("Unroll",),
    "networks.conv_encoder": ("ConvEncoder",),
    "networks.mlp": ("MLP",),
    "networks.resnet": ("ResNet",),
    "objectives.base": ("Objective",),
    "objectives.dsm": ("DSM",),
    "objectives.ksd": ("KSD",),
    "objectives.mdsm": ("MDSM",),
    "objectives.sm": ("SM",),
    "objectives.ssm": ("SSM",),
    "optimizers.adam": ("Adam",),
    "optimizers.sgd": ("SGD",),
    "posteriors.base": ("Posterior",),
    "posteriors.bernoulli": ("BernoulliPosterior",),
    "posteriors.gaussian": ("LinearGaussianPosterior", "NetworkGaussianPosterior"),
    "pretrained_models.loading": ("pretrained",),
    "samplers.annealed_langevin": ("AnnealedLangevin",),
    "samplers.gibbs": ("Gibbs",),
    "samplers.langevin": ("Langevin",),
    "scores.bilevel": ("BilevelScore",),
    "scores.exact": ("ExactScore",),
    "scores.importance": ("ImportanceScore",),
    "scores.variational": ("VaES", "vages_product"),
}
HOMES = {name: module for module, names in MODULES.items() for name in names}

__all__ = [
    "AIS",
    "DSM",
    "GRBM",
    "IWAE",
    "KL",
    "KSD",
    "MDSM",
    "MLP",
    "SGD",
    "SM",
    "SSM",
    "Adam",
    "AnnealedLangevin",
    "BernoulliPosterior",
    "BilevelProblem",
    "BilevelScore",
    "Checkerboard",
    "ConditionalEnergy",
    "ConfigError",
    "ConvEncoder",
    "DataError",
    "DeepEnergy",
    "DeepLatentEnergy",
    "DeepVectorEnergy",
    "Digits",
    "Direct",
    "EblvmError",
    "Energy",
    "ExactScore",
    "Fisher",
    "GaussianLatentModel",
    "Gibbs",
    "Implicit",
    "ImportanceScore",
    "Langevin",
    "LinearGaussianPosterior",
    "MarginalEnergy",
    "NetworkGaussianPosterior",
    "Objective",
    "Posterior",
    "ResNet",
    "Unroll",
    "VaES",
    "VisibleEnergy",
    "bind",
    "exact_log_partition",
    "params_of",
    "pretrained",
    "vages_product",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for (PEP 562)."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)
    globals()[name] = value  # the next time it is found at once
    return value


def __dir__() -> list[str]:
    """What there is, loaded or not."""
    return sorted({*globals(), *__all__})
