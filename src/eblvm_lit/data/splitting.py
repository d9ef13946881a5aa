"""The assignment of examples to splits by a hash of their content, without importing torch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from eblvm_lit.errors import DataError

__all__ = ["NAMES", "PURPOSES", "WORDS", "digests_of", "fraction_of", "refuse_empty", "split_of"]

NAMES = ("train", "val", "test")  # the names of splits 0, 1 and 2
PURPOSES = ("training", "validation", "testing")  # what they are for, in messages
# The words, in lower case, by which a column of split names or the name of an array denotes split 0 (training),
# 1 (validation) or 2 (test).
WORDS = {
    **dict.fromkeys(("train", "training", "0"), 0),
    **dict.fromkeys(("val", "valid", "validation", "dev", "1"), 1),
    **dict.fromkeys(("test", "testing", "2"), 2),
}
SIZE = 16  # number of bytes of a digest


def digests_of(rows: np.ndarray) -> list[bytes]:
    """Compute a digest of each example of an array from its bytes, without converting its dtype.

    Equal examples have equal digests: -0.0 is hashed as 0.0, and all numbers in little-endian byte order.

    Args:
        rows: The examples, shape (n, ...), of any numeric type.

    Returns:
        n digests of 16 bytes.

    Example:
        >>> first, second, third = digests_of(np.array([[1.0, 0.0], [2.0, 5.0], [1.0, -0.0]]))
        >>> first == second, first == third
        (False, True)
    """
    flat = rows.reshape(len(rows), -1)
    flat = flat.astype(flat.dtype.newbyteorder("<"), copy=False)
    if flat.dtype.kind == "f":
        flat = flat + flat.dtype.type(0)  # turns -0.0 into 0.0, so that equal numbers have equal digests
    return [hashlib.blake2b(row.tobytes(), digest_size=SIZE).digest() for row in flat]


def split_of(digests: Sequence[bytes], *, seed: int, val: float, test: float) -> np.ndarray:
    """Assign each example to a split by a seeded hash of its digest.

        u = hash(seed, digest) in [0, 1);   test if u < test,   validation if u < test + val,   training otherwise

    So the split of an example depends on no other example: adding, removing, renaming or reordering examples moves none
    of the others, equal examples land in one split, and a larger ``test`` only adds test examples. The sizes of the
    splits are random: of n different examples, n val ± sqrt(n val) are for validation.

    Args:
        digests: A digest of each example's content; :func:`digests_of` computes those of an array.
        seed: The seed of the hash; another seed gives other splits.
        val: The fraction of validation examples, in [0, 1).
        test: The fraction of test examples, in [0, 1); ``val + test`` must be below 1.

    Returns:
        The index in :data:`NAMES` of each example's split, int8, shape (n,).

    Example:
        >>> digests = digests_of(np.arange(1000.0))
        >>> split = split_of(digests, seed=0, val=0.1, test=0.1)
        >>> np.bincount(split).tolist(), bool((split_of(digests[::-1], seed=0, val=0.1, test=0.1) == split[::-1]).all())
        ([785, 117, 98], True)
    """
    key = int(seed).to_bytes(8, "little")
    hashes = b"".join(hashlib.blake2b(one, digest_size=8, key=key).digest() for one in digests)
    uniform = np.frombuffer(hashes, dtype="<u8") / 2.0**64
    return np.where(uniform < test, 2, np.where(uniform < test + val, 1, 0)).astype(np.int8)


def fraction_of(size: float, n: int) -> float:
    """Convert the size of a split to a fraction: an integer is divided by n, a fraction is kept.

    A fraction keeps every example in its split when n grows. An integer does not quite
    guarantee this: its fraction changes with n, and the few examples whose hash lies between the old and the new
    fraction change their split.

    Example:
        >>> fraction_of(500, 5000), fraction_of(0.2, 5000)
        (0.1, 0.2)
    """
    return size / n if isinstance(size, int) else size


def refuse_empty(counts: Sequence[int], where: str) -> None:
    """Raise an error if a split has no example, as happens by chance with few examples.

    Args:
        counts: The numbers of examples for training, validation and testing.
        where: Where the examples come from, for the message.

    Raises:
        DataError: If a number is zero.

    Example:
        >>> refuse_empty([2, 1, 0], "points.npy")
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.DataError: points.npy has 3 examples, and none of them is for testing: ...
    """
    total = sum(counts)
    for n, purpose in zip(counts, PURPOSES, strict=True):
        if n == 0:
            raise DataError(
                f"{where} has {total} example{'s' * (total != 1)}, and none of them is for {purpose}: change "
                "data.val_size or data.test_size, or try another data.split_seed; each split needs an example."
            )
