"""The public names and where each lives: what ``__init__.py`` loads on first use, and what editors read."""

from .core.functional import bind, params_of
from .data.digits import Digits
from .data.toy import Checkerboard
from .divergences.fisher import Fisher
from .divergences.kl import IWAE, KL
from .energies.base import ConditionalEnergy, Energy, MarginalEnergy, VisibleEnergy
from .energies.deep import DeepEnergy, DeepLatentEnergy, DeepVectorEnergy
from .energies.gaussian_latent import GaussianLatentModel
from .energies.grbm import GRBM
from .errors import ConfigError, DataError, EblvmError
from .evaluation.ais import AIS
from .evaluation.likelihood import exact_log_partition
from .hypergradients.base import BilevelProblem
from .hypergradients.implicit import Implicit
from .hypergradients.unroll import Unroll
from .networks.conv_encoder import ConvEncoder
from .networks.mlp import MLP
from .networks.resnet import ResNet
from .objectives.base import Objective
from .objectives.dsm import DSM
from .objectives.ksd import KSD
from .objectives.mdsm import MDSM
from .objectives.sm import SM
from .objectives.ssm import SSM
from .optimizers.adam import Adam
from .optimizers.sgd import SGD
from .posteriors.base import Posterior
from .posteriors.bernoulli import BernoulliPosterior
from .posteriors.gaussian import LinearGaussianPosterior, NetworkGaussianPosterior
from .pretrained_models.loading import pretrained
from .samplers.annealed_langevin import AnnealedLangevin
from .samplers.gibbs import Gibbs
from .samplers.langevin import Langevin
from .scores.bilevel import BilevelScore
from .scores.exact import ExactScore
from .scores.importance import ImportanceScore
from .scores.variational import VaES, vages_product

__version__: str

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
