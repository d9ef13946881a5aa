"""What each of two processes does in the test that they find what one finds."""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from pytorch_lightning import LightningModule

from eblvm_lit.evaluation.criteria.frechet import FrechetDistance
from eblvm_lit.evaluation.criteria.inception_score import InceptionScore
from eblvm_lit.evaluation.criteria.kernel import KernelDistance
from eblvm_lit.evaluation.features.reference import ReferenceImages
from eblvm_lit.evaluation.ranks import first_rank_first, rank_and_size
from eblvm_lit.evaluation.sample_quality import SampleQuality
from fake_images import Noise, RandomFeatures, textures


def quality(folder, features=None, images=None, **options):
    """All criteria, on few images."""
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
        n_samples=options.pop("n_samples", 37),  # odd: one process has an image more than the other
        n_samples_at_validation=20,
        save_dir=str(folder / "run"),
    )


def values(metric, split="test", data=None):
    return metric.evaluate(LightningModule(), data or textures(), split, torch.Generator())


def evaluate(rank, folder):
    """One of two processes."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    features = RandomFeatures()
    twice = [values(quality(folder, features)) for _ in range(2)]  # computed, then read from the file
    order = [first_rank_first(lambda: (folder / "mark").touch() if rank == 0 else (folder / "mark").exists())]
    torch.save({"values": twice, "n_seen": features.n_seen, "order": order}, folder / f"rank{rank}.pt")
    assert rank_and_size() == (rank, 2)
    dist.destroy_process_group()


def spawn(folder):
    """What both have left."""
    mp.spawn(evaluate, (folder,), nprocs=2)
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]
