"""The public names and their modules, which ``__init__.py`` loads on first use, and which editors read."""

from .cli.compose import train
from .cli.estimator import EBLVM
from .cli.image_evaluation import evaluate_images
from .core.functional import bind, params_of
from .core.noise_levels import NoiseRange
from .data.array_files import ArrayFile
from .data.base import ArrayDataModule
from .data.blobs import TwentyFiveGaussians
from .data.curves import Circle, Moons, Rings, SwissRoll, TwoSpirals
from .data.digits import Digits
from .data.frey_face import FreyFace
from .data.image_folder import ImageFolder
from .data.torchvision_sets import CIFAR10, MNIST, SVHN, CelebA, FashionMNIST
from .data.toy import Checkerboard
from .divergences.base import Divergence
from .divergences.fisher import Fisher
from .divergences.kl import IWAE, KL
from .energies.base import ConditionalEnergy, Energy, GibbsEnergy, MarginalEnergy, VisibleEnergy
from .energies.bernoulli_rbm import BernoulliRBM
from .energies.composed import MixtureEnergy, ProductEnergy, TiltedEnergy
from .energies.coupled_grbm import CoupledGRBM
from .energies.deep import DeepEnergy, DeepLatentEnergy, DeepVectorEnergy
from .energies.deep_boltzmann import DeepBoltzmannMachine
from .energies.gaussian_latent import GaussianLatentModel
from .energies.grbm import GRBM
from .energies.harmonium import DeepHarmonium, Harmonium
from .energies.latent_prior import LatentPriorEnergy
from .energies.log_partition import exact_log_partition
from .energies.mlp_energy import MLPEnergy
from .energies.noise_conditional import (
    NoiseConditionalEnergy,
    NoiseConditionalExactLatents,
    NoiseConditionalFreeEnergy,
)
from .energies.perturbed import PerturbedGRBM
from .energies.quadrature import QuadratureMarginal
from .energies.spectral import SpectralEnergy
from .errors import ConfigError, DataError, EblvmError
from .evaluation.base import ExampleMetric, Metric
from .evaluation.likelihood.ais import AIS
from .evaluation.likelihood.hamiltonian_ais import HamiltonianAIS
from .evaluation.likelihood.log_likelihood import LogLikelihood
from .evaluation.likelihood.plane_quadrature import PlaneQuadrature
from .evaluation.likelihood.visible_quadrature import VisibleQuadrature
from .evaluation.modes import Modes
from .figures.base import Picture
from .hypergradients.base import BilevelProblem, Hypergradient, HypergradientStep, LowerLevel
from .hypergradients.finite_difference import AdamAdjoint, FiniteDifference
from .hypergradients.fixed_point import FixedPoint
from .hypergradients.implicit import Implicit
from .hypergradients.penalty import Penalty
from .hypergradients.unroll import Unroll
from .hypergradients.warm import Warm
from .methods.annealed_likelihood import AnnealedLikelihood
from .methods.base import Method
from .methods.bidvl.method import BiDVL
from .methods.bidvl.sngan import SNGAN
from .methods.bidvl.vae import VAE
from .methods.bism import BiSM
from .methods.contrastive_divergence import ContrastiveDivergence
from .methods.critics import FisherCritic, VaGESFisher
from .methods.jarzynski import Jarzynski
from .methods.lebm import LEBM
from .methods.level_classification import LevelClassification
from .methods.log_density.energy_discrepancy import EnergyDiscrepancy, LatentEnergyDiscrepancy
from .methods.log_density.log_densities import ExactLogDensity, LogDensity, LogDensityBound
from .methods.log_density.nce import NCE, VNCE
from .methods.log_density.snl import SNL, VSNL
from .methods.loss_method import LossMethod
from .methods.particle_ml import ParticleML
from .methods.parts import MethodParts
from .methods.posterior_fit import PosteriorFit
from .methods.score_matching import ScoreMatching
from .methods.state import ParamGroup, TrainState
from .methods.vages import VaGES
from .networks.conv_encoder import ConvEncoder
from .networks.image_mlp import ImageMLP
from .networks.mlp import MLP
from .networks.resnet import ResNet
from .objectives.base import Objective
from .objectives.dsm import DSM
from .objectives.dual import Dual
from .objectives.ksd import KSD
from .objectives.mdsm import MDSM
from .objectives.sm import SM
from .objectives.ssm import SSM
from .optimizers.adam import Adam
from .optimizers.base import Optimizer
from .optimizers.sgd import SGD
from .posteriors.at_every_level import NoiseConditionalPosterior
from .posteriors.base import Posterior
from .posteriors.bernoulli import BernoulliPosterior
from .posteriors.gaussian import GaussianPosterior, LinearGaussianPosterior, NetworkGaussianPosterior
from .runs.load import from_pretrained, load
from .runs.trained_run import TrainedRun
from .samplers.annealed_langevin import AnnealedLangevin
from .samplers.diffusive_gibbs import DiffusiveGibbs
from .samplers.dynamics import Chains, Dynamics
from .samplers.gibbs import Gibbs
from .samplers.gibbs_langevin import GibbsLangevin
from .samplers.hmc import HMC
from .samplers.langevin import Langevin
from .samplers.parallel_tempering import ParallelTempering
from .samplers.probability_flow import ProbabilityFlow
from .samplers.sampler import ChainSamples, Sampler
from .scores.base import ScoreEstimator
from .scores.bilevel import BilevelScore
from .scores.exact import Exact, ExactScore
from .scores.importance import Importance, ImportanceScore
from .scores.particles import PosteriorParticles
from .scores.variational import VaES, VariationalScore, vages_product

__version__: str

__all__ = [
    "AIS",
    "CIFAR10",
    "DSM",
    "EBLVM",
    "GRBM",
    "HMC",
    "IWAE",
    "KL",
    "KSD",
    "LEBM",
    "MDSM",
    "MLP",
    "MNIST",
    "NCE",
    "SGD",
    "SM",
    "SNGAN",
    "SNL",
    "SSM",
    "SVHN",
    "VAE",
    "VNCE",
    "VSNL",
    "Adam",
    "AdamAdjoint",
    "AnnealedLangevin",
    "AnnealedLikelihood",
    "ArrayDataModule",
    "ArrayFile",
    "BernoulliPosterior",
    "BernoulliRBM",
    "BiDVL",
    "BiSM",
    "BilevelProblem",
    "BilevelScore",
    "CelebA",
    "ChainSamples",
    "Chains",
    "Checkerboard",
    "Circle",
    "ConditionalEnergy",
    "ConfigError",
    "ContrastiveDivergence",
    "ConvEncoder",
    "CoupledGRBM",
    "DataError",
    "DeepBoltzmannMachine",
    "DeepEnergy",
    "DeepHarmonium",
    "DeepLatentEnergy",
    "DeepVectorEnergy",
    "DiffusiveGibbs",
    "Digits",
    "Divergence",
    "Dual",
    "Dynamics",
    "EblvmError",
    "Energy",
    "EnergyDiscrepancy",
    "Exact",
    "ExactLogDensity",
    "ExactScore",
    "ExampleMetric",
    "FashionMNIST",
    "FiniteDifference",
    "Fisher",
    "FisherCritic",
    "FixedPoint",
    "FreyFace",
    "GaussianLatentModel",
    "GaussianPosterior",
    "Gibbs",
    "GibbsEnergy",
    "GibbsLangevin",
    "HamiltonianAIS",
    "Harmonium",
    "Hypergradient",
    "HypergradientStep",
    "ImageFolder",
    "ImageMLP",
    "Implicit",
    "Importance",
    "ImportanceScore",
    "Jarzynski",
    "Langevin",
    "LatentEnergyDiscrepancy",
    "LatentPriorEnergy",
    "LevelClassification",
    "LinearGaussianPosterior",
    "LogDensity",
    "LogDensityBound",
    "LogLikelihood",
    "LossMethod",
    "LowerLevel",
    "MLPEnergy",
    "MarginalEnergy",
    "Method",
    "MethodParts",
    "Metric",
    "MixtureEnergy",
    "Modes",
    "Moons",
    "NetworkGaussianPosterior",
    "NoiseConditionalEnergy",
    "NoiseConditionalExactLatents",
    "NoiseConditionalFreeEnergy",
    "NoiseConditionalPosterior",
    "NoiseRange",
    "Objective",
    "Optimizer",
    "ParallelTempering",
    "ParamGroup",
    "ParticleML",
    "Penalty",
    "PerturbedGRBM",
    "Picture",
    "PlaneQuadrature",
    "Posterior",
    "PosteriorFit",
    "PosteriorParticles",
    "ProbabilityFlow",
    "ProductEnergy",
    "QuadratureMarginal",
    "ResNet",
    "Rings",
    "Sampler",
    "ScoreEstimator",
    "ScoreMatching",
    "SpectralEnergy",
    "SwissRoll",
    "TiltedEnergy",
    "TrainState",
    "TrainedRun",
    "TwentyFiveGaussians",
    "TwoSpirals",
    "Unroll",
    "VaES",
    "VaGES",
    "VaGESFisher",
    "VariationalScore",
    "VisibleEnergy",
    "VisibleQuadrature",
    "Warm",
    "bind",
    "evaluate_images",
    "exact_log_partition",
    "from_pretrained",
    "load",
    "params_of",
    "train",
    "vages_product",
]
