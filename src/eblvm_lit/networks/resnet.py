"""The residual convolutional network of the deep energies."""

from __future__ import annotations

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, elu
from torch.utils.checkpoint import checkpoint

from eblvm_lit.core.functional import is_plain_first_order
from eblvm_lit.core.ranges import ImageShape
from eblvm_lit.networks.shapes import image_shape

__all__ = ["ResNet"]


class _Block(nn.Module):
    """A residual block of two convolutions, each after an ELU, with a 1x1 convolution as the shortcut.

    It halves the resolution if ``down`` is true.
    """

    def __init__(self, n_in: int, n_out: int, *, down: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(n_in, n_in, 3, padding=1, bias=False)
        self.second = nn.Conv2d(n_in, n_out, 3, padding=1)
        self.shortcut = nn.Conv2d(n_in, n_out, 1)
        self.down = down

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(elu(self.first(elu(x))))
        if self.down:
            x = avg_pool2d(x, 2)
            y = avg_pool2d(y, 2)
        return y + self.shortcut(x)


class ResNet(nn.Module):
    r"""A feature network without normalisation: a 3x3 convolution to C channels and three stages of k residual blocks.

    .. math:: x \mapsto P(w_2 * a(w_1 * a(x))) + w_0 * P(x), \quad a = \mathrm{ELU}

    The formula is that of one block. In the first block of each stage, which doubles the channels, P averages 2x2
    pixels and so halves the resolution; elsewhere P is the identity. The last block's output is flattened without an
    activation into (H/8)(W/8) 8C features. Published with 12, 18 or 24 layers, where 6k is the number of layers.
    Reference: Bao et al. 2020, section 5.2, and code; Li et al. 2019.

    Kernels and activations are stored with the channels last, the memory format in which convolutions are fastest.

    Args:
        v_shape: The channels, height and width of the image; height and width are multiples of 8 times ``stem_stride``.
        n_blocks: The number k of residual blocks in a stage.
        channels: The number C of channels after the first convolution.
        stem_stride: The stride of the first convolution: 1, as published, or an even number s. The kernel is then 2 s
            pixels wide, the stages see an image of 1/s of the size, and a pass costs 1/s^2 as much.
        checkpoint: Whether a block's activations are recomputed for a gradient instead of stored. This has an effect
            only on first-order gradients by plain autograd: those of samplers, and of contrastive divergence that is
            not compiled. Score matching differentiates a gradient, whose graph contains the recomputed activations,
            too; checkpointing would double its memory.

    Raises:
        ConfigError: If the height or the width is not divisible by 8 times ``stem_stride``.

    Example:
        >>> network = ResNet(v_shape=[3, 32, 32], n_blocks=1, channels=4)
        >>> network.out_dim, network(torch.zeros(5, 3, 32, 32)).shape
        (512, torch.Size([5, 512]))
    """

    def __init__(
        self,
        *,
        v_shape: ImageShape,
        n_blocks: PositiveInt,
        channels: PositiveInt,
        stem_stride: PositiveInt = 1,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        self.event_shape = image_shape(v_shape, 8 * stem_stride)
        total = 8 * stem_stride
        depth, height, width = self.event_shape
        self.checkpoint = checkpoint
        self.out_dim = (height // total) * (width // total) * 8 * channels
        size, padding = (3, 1) if stem_stride == 1 else (2 * stem_stride, stem_stride // 2)
        self.stem = nn.Conv2d(depth, channels, size, stride=stem_stride, padding=padding)
        blocks = []
        for n in (channels, 2 * channels, 4 * channels):
            blocks.append(_Block(n, 2 * n, down=True))
            blocks += [_Block(2 * n, 2 * n, down=False) for _ in range(n_blocks - 1)]
        self.blocks = nn.ModuleList(blocks)
        # A convolution returns its output in the memory format of its kernel, so it is enough to convert the kernels.
        self.to(memory_format=torch.channels_last)

    def forward(self, v: Tensor) -> Tensor:
        """Compute the features, shape (B, out_dim), of images v (B, C_in, H, W)."""
        x = self.stem(v)
        recompute = self.checkpoint and is_plain_first_order() and torch.is_grad_enabled()
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False) if recompute else block(x)
        return x.flatten(1)
