"""Metrics of image quality on a few random images."""

import torch

from eblvm_lit.evaluation.criteria.frechet_distance import FrechetDistance
from eblvm_lit.evaluation.criteria.inception_score import InceptionScore
from eblvm_lit.evaluation.criteria.kernel import KernelDistance
from eblvm_lit.evaluation.features.inception import InceptionFeatures
from eblvm_lit.evaluation.features.reference import ReferenceImages
from eblvm_lit.evaluation.features.sets import FeatureSet
from eblvm_lit.evaluation.frechet import Moments
from eblvm_lit.evaluation.sample_quality import SampleQuality
from helpers.fake_images import Noise, RandomFeatures

TITLES = InceptionFeatures.titles


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def moments_of(rows):
    moments = Moments(rows.shape[1])
    moments.update(rows)
    return moments.gaussian()


def set_of(rows, logits=None):
    return FeatureSet(len(rows), moments_of(rows), rows, logits)


def quality(folder, features=None, images=None, **options):
    """Build the metric of sample quality with all criteria, on few images."""
    criteria = {
        "frechet": FrechetDistance(),
        "kernel": KernelDistance(n_subsets=4, subset_size=15),
        "score": InceptionScore(n_splits=3),
    }
    return SampleQuality(
        images=images or Noise(),
        features=features or RandomFeatures(),
        reference=ReferenceImages(cache_dir=str(folder / "cache")),
        criteria=options.pop("criteria", criteria),
        n_samples=options.pop("n_samples", 37),
        n_samples_at_validation=20,
    )


def pictures(n, *, channels=3, side=16, seed=0):
    """Return smooth random images, on which methods of resizing differ visibly, but not completely."""
    coarse = torch.rand(n, channels, 4, 4, generator=torch.Generator().manual_seed(seed)) ** (1 + seed)
    smooth = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bicubic")
    return smooth.clamp(0, 1).mul(255).round().to(torch.uint8)
