"""Random numbers as functions of a seed, a purpose and a time, so that no generator's state has to be saved."""

from __future__ import annotations

import hashlib

import torch

__all__ = ["derive_seed", "keyed_generator"]


def derive_seed(seed: int, *keys: int | str) -> int:
    """Derive an independent seed by hashing a seed and any number of keys.

    Args:
        seed: The run's seed.
        keys: The purpose and the time of the random numbers, such as ``"noise"``, a rank or an epoch.

    Returns:
        An integer in [0, 2**32), the range of seeds that PyTorch's CPU generator distinguishes.

    Example:
        >>> derive_seed(0, "noise") == derive_seed(0, "noise"), derive_seed(0, "noise") == derive_seed(0, "order")
        (True, False)
    """
    text = "/".join(str(part) for part in (seed, *keys))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little")


def keyed_generator(seed: int, *keys: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """Create a random number generator, seeded with the result of :func:`derive_seed` for the given seed and keys.

    Example:
        >>> a, b = (torch.rand(3, generator=keyed_generator(1, "validation")) for _ in range(2))
        >>> bool((a == b).all())
        True
    """
    return torch.Generator(device=device).manual_seed(derive_seed(seed, *keys))
