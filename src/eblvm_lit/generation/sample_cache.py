"""Thousands of samples of a model, drawn once and kept on disk."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.distributed.ranks import barrier, rank_and_size
from eblvm_lit.errors import ConfigError
from eblvm_lit.generation.annealed_samples import AnnealedSamples
from eblvm_lit.generation.checked_rows import CheckedRows
from eblvm_lit.generation.image_source import ImageSource
from eblvm_lit.methods.base import Method
from eblvm_lit.utils.digest import digest
from eblvm_lit.utils.progress import progress_bar

__all__ = ["SampleArchive"]

log = logging.getLogger(__name__)
N_EXAMPLES = 1000  # training images that tell one set from another


class SampleArchive(ImageSource):
    """Samples as bytes in a file named by all that they depend on; only those that are not there yet are drawn.

    They reach the disk batch by batch: what was interrupted goes on where it was, and a longer request goes on where a
    shorter one ended. Processes of one group draw every so-many-th batch each, into the same file, which all of them
    must see. Image i is the same whatever the number of processes, and to rounding whatever the batch size.

    Args:
        sampler: How they are drawn.
        cache_dir: Folder that runs share; they are in ``samples/<digest>/`` there.

    Example:
        >>> import tempfile
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.data.digits import Digits
        >>> from eblvm_lit.methods.base import MethodParts
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> from eblvm_lit.samplers.annealed_langevin import AnnealedLangevin
        >>> data, parts = Digits(), MethodParts(energy=GaussianLatentModel(v_dim=64, h_dim=3))
        >>> method = SimpleNamespace(parts=parts, seed=0)
        >>> data.setup()
        >>> short = AnnealedSamples(langevin=AnnealedLangevin(n_hot=0, n_falling=3, n_cold=0), batch_size=4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     images = SampleArchive(sampler=short, cache_dir=folder).images(method, data, 6)
        >>> images.shape, images.dtype
        (torch.Size([6, 1, 8, 8]), torch.uint8)
    """

    def __init__(self, *, sampler: AnnealedSamples, cache_dir: str) -> None:
        self.sampler, self.cache_dir = sampler, Path(cache_dir)

    def supports(self, method: Method, data: ArrayDataModule) -> bool:
        """Whether the data are images and the sampler can draw from the model."""
        energy, posterior = method.parts.energy, method.parts.posterior
        return data.image_shape is not None and self.sampler.supports(energy, posterior, data.splits.train)

    def images(self, method: Method, data: ArrayDataModule, n: int) -> Tensor:
        """The first n images; see :meth:`ImageSource.images`.

        Raises:
            ConfigError: For n < 1, data without images, a model that cannot be sampled so or diverges, or a disk
                without room.
        """
        if n < 1:
            raise ConfigError(f"An archive of samples needs n >= 1, not {n}.")
        rank, world = rank_and_size()
        rows = self.rows(method, data)
        if rank == 0:
            rows.grow(n)
        barrier()
        self.fill(method, data, n, rank=rank, world=world)
        barrier()
        if world > 1 and not rows.valid(n).all():
            raise ConfigError(f"{rows.folder} lacks samples of other processes: set cache_dir to a shared folder.")
        return torch.from_numpy(rows.read(n))

    def rows(self, method: Method, data: ArrayDataModule) -> CheckedRows:
        """The file of a model's samples, there or not."""
        if data.image_shape is None:
            raise ConfigError(f"{type(data).__name__} has no images: an archive of samples needs data of images.")
        energy, posterior, examples = method.parts.energy, method.parts.posterior, data.splits.train
        kind, langevin = self.sampler.check(energy, posterior, examples), self.sampler.langevin
        parts = [kind, langevin.step_size, langevin.temperatures, langevin.denoise_std, method.seed]
        # a GPU draws other noise than a CPU; and the same model makes other bytes of another range of values
        parts += [next(energy.parameters()).device.type, energy, data.image_shape]
        parts += [data.as_bytes(torch.linspace(-2, 2, 5))]
        if kind == "posterior":  # samples begin at training images
            chosen = torch.linspace(0, len(examples) - 1, min(N_EXAMPLES, len(examples))).long()
            parts += [posterior, len(examples), data.as_float(examples[chosen])]
        return CheckedRows(self.cache_dir / "samples" / digest(*parts), data.image_shape)

    def fill(self, method: Method, data: ArrayDataModule, n: int, *, rank: int = 0, world: int = 1) -> None:
        """Draw those of the first n images that are not there and fall to one process of several.

        Args:
            method: The method.
            data: Its data, set up.
            n: Number of images, for which there is room.
            rank: Which process this is.
            world: Number of processes.
        """
        rows, size = self.rows(method, data), self.sampler.batch_size
        there = rows.valid(n)
        # batches of fixed places, so that a process need not know what others have done
        batches = [range(first, min(first + size, n)) for first in range(rank * size, n, world * size)]
        missing = [part for batch in batches if (part := [i for i in batch if not there[i]])]
        if there.any() and missing:
            log.info("%d of %d samples are there: the others are drawn.", there.sum(), n)
        total = sum(map(len, missing)) * self.sampler.langevin.n_steps
        options = {"seed": method.seed, "posterior": method.parts.posterior}
        options |= {"examples": data.splits.train, "as_float": data.as_float}
        with progress_bar("samples", total, visible=rank == 0 and total > 0) as on_step:
            for part in missing:
                v = self.sampler.draw(method.parts.energy, part, on_step=on_step, **options)
                rows.write(part, data.as_bytes(v).cpu().view(-1, *data.image_shape).numpy())
