"""A cache on disk of a model's samples as images, one file for each batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from eblvm_lit.core.ranks import barrier, rank_and_size
from eblvm_lit.data.base import ArrayDataModule, image_shape_of
from eblvm_lit.draws.base import ImageSource
from eblvm_lit.energies.base import Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.base import Method
from eblvm_lit.samplers.chain_samples import ChainSamples
from eblvm_lit.utils.digest import digest
from eblvm_lit.utils.io import read_arrays, read_cached, write_whole
from eblvm_lit.utils.progress import progress_bar

__all__ = ["SampleCache"]

N_EXAMPLES = 1000  # training images that are part of the digest


class SampleCache(ImageSource):
    """Samples as bytes in a folder named by a digest of all that they depend on; only missing samples are drawn.

    Each batch is one file, written as a whole: an interrupted run resumes at the first missing batch, and a longer
    request draws only what a shorter one has not. Of R processes each draws every R-th batch, into the same folder,
    which all of them must share. Image i does not depend on the number of processes, and only up to rounding on the
    batch size.

    Args:
        sampler: How samples are drawn.
        cache_dir: Folder that runs share; the files are in ``samples/<digest>/`` there.

    Example:
        >>> import tempfile
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.data.digits import Digits
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> from eblvm_lit.samplers.annealed_langevin import AnnealedLangevin
        >>> data, parts = Digits(), MethodParts(energy=GaussianLatentModel(v_dim=64, h_dim=3))
        >>> method = SimpleNamespace(parts=parts, seed=0)
        >>> data.setup()
        >>> short = ChainSamples(dynamics=AnnealedLangevin(n_hot=0, n_falling=3, n_cold=0), batch_size=4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     images = SampleCache(sampler=short, cache_dir=folder).images(method, data, 6)
        >>> images.shape, images.dtype
        (torch.Size([6, 1, 8, 8]), torch.uint8)
    """

    def __init__(self, *, sampler: ChainSamples, cache_dir: str) -> None:
        self.sampler = sampler
        self.cache_dir = Path(cache_dir)

    def supports(self, method: Method, data: ArrayDataModule) -> bool:
        """Whether the data are images and the sampler can draw from the model."""
        kind = self.sampler.kind_for(method.parts.energy, method.parts.posterior, data.splits.train)
        return data.image_shape is not None and kind is not None

    def images(self, method: Method, data: ArrayDataModule, n: int) -> Tensor:
        """The first n images; see :meth:`ImageSource.images`.

        Raises:
            ConfigError: For a model that diverges, or processes that do not share the folder.
        """
        rank, world = rank_and_size()
        self.fill(method, data, n, rank=rank, world=world)
        barrier()
        images, there = _read(self.folder(method, data), n, image_shape_of(data))
        if not there.all():
            raise ConfigError(f"{self.cache_dir} lacks samples of other processes: set cache_dir to a shared folder.")
        return torch.from_numpy(images)

    def folder(self, method: Method, data: ArrayDataModule) -> Path:
        """The folder of a model's samples, which need not exist yet."""
        energy = method.parts.energy
        posterior = method.parts.posterior
        examples = data.splits.train
        kind = self.sampler.check(energy, posterior, examples)
        parts = [kind, *self.sampler.dynamics.settings, method.seed]
        # A GPU draws other noise than a CPU, and another range of values gives other bytes.
        parts += [next(cast(Energy, energy).parameters()).device.type, energy, data.image_shape]
        parts += [data.as_bytes(torch.linspace(-2, 2, 5))]
        parts += ["bfloat16"] if self.sampler.bfloat16 else []
        if kind in ("score", "mean"):
            parts += [posterior]
        if kind == "posterior":  # the latents are those of training images
            chosen = torch.linspace(0, len(examples) - 1, min(N_EXAMPLES, len(examples))).long()
            parts += [posterior, len(examples), data.as_float(examples[chosen])]
        return self.cache_dir / "samples" / digest(*parts)

    def fill(self, method: Method, data: ArrayDataModule, n: int, *, rank: int = 0, world: int = 1) -> None:
        """Draw the missing ones of the first n images, as far as they are one process's share.

        Args:
            method: The method.
            data: Its data, set up.
            n: Number of images.
            rank: Which process this is.
            world: Number of processes.
        """
        folder = self.folder(method, data)
        size = self.sampler.batch_size
        shape = image_shape_of(data)
        _, there = _read(folder, n, shape)
        # The places of the batches are fixed: a process need not know what others have done.
        batches = [range(first, min(first + size, n)) for first in range(rank * size, n, world * size)]
        missing = [part for batch in batches if (part := [i for i in batch if not there[i]])]
        options: dict[str, Any] = {"seed": method.seed, "posterior": method.parts.posterior}
        options |= {"examples": data.splits.train, "as_float": data.as_float}
        n_moves = sum(map(len, missing)) * self.sampler.dynamics.n_steps
        with progress_bar("samples", n_moves, visible=rank == 0 and n_moves > 0) as on_step:
            for part in missing:
                v = self.sampler.draw(cast(Energy, method.parts.energy), part, on_step=on_step, **options)
                images = data.as_bytes(v).cpu().view(-1, *shape).numpy()
                arrays: dict[str, Any] = {"indices": np.array(part), "images": images}
                path = folder / f"{part[0]:06}-{part[-1]:06}.npz"
                write_whole(path, lambda file, arrays=arrays: np.savez(file, **arrays))


def _read(folder: Path, n: int, image_shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Images 0 to n - 1, shape (n, C, H, W), and which of them the files of a folder hold, shape (n,)."""
    images = np.zeros((n, *image_shape), np.uint8)
    there = np.zeros(n, bool)
    found = [read_cached(path, read_arrays) for path in sorted(folder.glob("*.npz"))]
    for arrays in filter(None, found):
        known = arrays["indices"] < n
        images[arrays["indices"][known]] = arrays["images"][known]
        there[arrays["indices"][known]] = True
    return images, there
