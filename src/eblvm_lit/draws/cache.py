"""A cache on disk of a model's samples as images, one file for each batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eblvm_lit.core.ranks import barrier, rank_and_size
from eblvm_lit.core.tensors import tensor_of
from eblvm_lit.data.base import ArrayDataModule, image_shape_of
from eblvm_lit.draws.base import ImageSource
from eblvm_lit.draws.chains import N_LATENTS, ChainDraws
from eblvm_lit.draws.choice import DrawnAsTheRun
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.base import Method
from eblvm_lit.samplers.dynamics import Dynamics
from eblvm_lit.samplers.langevin import Langevin
from eblvm_lit.samplers.sampler import Sampler
from eblvm_lit.utils.digest import digest
from eblvm_lit.utils.io import read_arrays, read_cached, write_whole
from eblvm_lit.utils.progress import progress_bar

__all__ = ["SampleCache"]

N_EXAMPLES = 1000  # the maximum number of training images that enter the digest in the folder's name


class SampleCache(DrawnAsTheRun, ImageSource):
    """A source of images that caches samples on disk as 8-bit images, and draws only samples that are not cached yet.

    The folder is named by a digest of everything that the samples depend on. Each batch is one file, which is written
    completely or not at all. An interrupted run therefore resumes at the first missing batch, and a request for more
    images draws only the additional ones. Each of R processes draws every R-th batch into the same folder, which all of
    them must share. Image i does not depend on the number of processes, and depends on the batch size only up to
    rounding. Images of a generator take almost no time and are not stored.

    Args:
        sampler: The run's sampler; see :func:`~eblvm_lit.draws.choice.draws_of`.
        cache_dir: The folder that runs share; the files are in its subfolder ``samples/<digest>/``.
        langevin: The Langevin steps that sample a learnt prior of latents; used only for a model that has one.

    Example:
        >>> import tempfile
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.data.digits import Digits
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> from eblvm_lit.samplers.annealed_langevin import AnnealedLangevin
        >>> data, parts = Digits(), MethodParts(energy=GaussianLatentModel(v_dim=64, h_dim=3))
        >>> method = SimpleNamespace(parts=parts, seed=0, device="cpu")
        >>> data.setup()
        >>> short = Sampler(dynamics=AnnealedLangevin(n_hot=0, n_falling=3, n_cold=0), batch_size=4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     images = SampleCache(sampler=short, cache_dir=folder).images(method, data, 6)
        >>> images.shape, images.dtype
        (torch.Size([6, 1, 8, 8]), torch.uint8)
    """

    needs = "images, and a model or a generator that can be sampled"

    def __init__(self, *, sampler: Sampler | Dynamics, cache_dir: str, langevin: Langevin | None = None) -> None:
        super().__init__(sampler=sampler, langevin=langevin)
        self.cache_dir = Path(cache_dir)

    def supports(self, method: Method, data: ArrayDataModule) -> bool:
        """Return whether the data are images and samples can be drawn from the model."""
        return data.image_shape is not None and self.draws(method, data) is not None

    def images(self, method: Method, data: ArrayDataModule, n: int) -> Tensor:
        """Return the first n images, and draw those that are not in the cache; see :meth:`ImageSource.images`.

        Raises:
            ConfigError: If the chains diverge, or if the processes do not share the folder.
        """
        draws = self.draws(method, data)
        if not isinstance(draws, ChainDraws):
            return self.generator.images(method, data, n)
        rank, world = rank_and_size()
        self.fill(draws, n, rank=rank, world=world)
        barrier()
        images, there = _read(self.folder(draws), n, image_shape_of(data))
        if not there.all():
            raise ConfigError(
                f"{self.cache_dir} lacks samples of other processes: set cache_dir to a folder that all share."
            )
        return torch.from_numpy(images)

    def folder(self, draws: ChainDraws) -> Path:
        """Return the path of the folder that stores a model's samples; the folder need not exist yet."""
        sampler = draws.sampler
        data = draws.data
        posterior = draws.method.parts.posterior
        parts = ["draws", draws.kind, *sampler.dynamics.settings, draws.method.seed]
        # The digest includes the type of the device, because a GPU generates other noise than a CPU, and the conversion
        # of samples to bytes, because it depends on the data's range of values.
        parts += [tensor_of(draws.energy, "cpu").device.type, draws.energy, data.image_shape]
        parts += [data.as_bytes(torch.linspace(-2, 2, 5))]
        parts += ["bfloat16"] if sampler.bfloat16 else []
        if draws.kind in ("score", "mean", "levels"):
            parts += [posterior]
        if draws.boxed:
            parts += [draws.starts["box"]]
        if draws.kind == "posterior":  # the samples then depend on the training images whose latents are used
            examples = data.splits.train[:N_LATENTS]
            chosen = torch.linspace(0, len(examples) - 1, min(N_EXAMPLES, len(examples))).long()
            parts += [posterior, len(examples), data.as_float(examples[chosen])]
        return self.cache_dir / "samples" / digest(*parts)

    def fill(self, draws: ChainDraws, n: int, *, rank: int = 0, world: int = 1) -> None:
        """Draw and store the images that the cache lacks among the first n; each process draws its share of them.

        Args:
            draws: The chains that draw the images.
            n: The number of images.
            rank: The rank of this process.
            world: The number of processes.
        """
        folder = self.folder(draws)
        size = draws.sampler.batch_size
        shape = image_shape_of(draws.data)
        _, there = _read(folder, n, shape)
        # The boundaries of the batches do not depend on the images that exist already, so each process finds its own
        # batches without communication.
        batches = [range(first, min(first + size, n)) for first in range(rank * size, n, world * size)]
        missing = [part for batch in batches if (part := [i for i in batch if not there[i]])]
        n_moves = sum(map(len, missing)) * draws.n_steps
        with progress_bar("samples", n_moves, visible=rank == 0 and n_moves > 0) as on_step:
            for part in missing:
                v = draws.part(part, seed=draws.method.seed, on_step=on_step)
                images = draws.data.as_bytes(v).cpu().view(-1, *shape).numpy()
                arrays: dict[str, Any] = {"indices": np.array(part), "images": images}
                path = folder / f"{part[0]:06}-{part[-1]:06}.npz"
                write_whole(path, lambda file, arrays=arrays: np.savez(file, **arrays))


def _read(folder: Path, n: int, image_shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Read images 0 to n - 1 from a folder; return them (n, C, H, W), and a mask (n,) of the images that exist."""
    images = np.zeros((n, *image_shape), np.uint8)
    there = np.zeros(n, bool)
    found = [read_cached(path, read_arrays) for path in sorted(folder.glob("*.npz"))]
    for arrays in filter(None, found):
        known = arrays["indices"] < n
        images[arrays["indices"][known]] = arrays["images"][known]
        there[arrays["indices"][known]] = True
    return images, there
