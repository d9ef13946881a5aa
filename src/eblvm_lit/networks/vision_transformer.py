"""The vision transformer of DINOv2, as far as the features of its class token need it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, scaled_dot_product_attention

__all__ = ["VisionTransformer"]

HEAD_DIM = 64
OFFSET = 0.1  # of the grid when position embeddings are resized, as in the released code


class LayerScale(nn.Module):
    """A factor for each channel."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """The scaled channels, shape of x."""
        return x * self.gamma


class Attention(nn.Module):
    """Self-attention of several heads."""

    def __init__(self, dim: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, N, D) of x (B, N, D)."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two layers with a GELU between them."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Shape of x."""
        return self.fc2(nn.functional.gelu(self.fc1(x)))


class Block(nn.Module):
    """Attention and two layers, each normalised before, scaled after and added."""

    def __init__(self, dim: int, n_heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, n_heads)
        self.mlp = FeedForward(dim)
        self.ls1 = LayerScale(dim)
        self.ls2 = LayerScale(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Shape of x."""
        x = x + self.ls1(self.attn(self.norm1(x)))
        return x + self.ls2(self.mlp(self.norm2(x)))


class Patches(nn.Module):
    """Patches of an image as vectors."""

    def __init__(self, dim: int, side: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, side, stride=side)

    def forward(self, images: Tensor) -> Tensor:
        """Shape (B, N, D) of images (B, 3, H, W)."""
        return self.proj(images).flatten(2).transpose(1, 2)


class VisionTransformer(nn.Module):
    """Images to the normalised class token, with the names of parameters of the released weights.

    Position embeddings of another grid are resized by bicubic interpolation. Reference: Oquab et al. 2023, arXiv
    2304.07193, and code.

    Args:
        dim: Width D.
        depth: Number of blocks.
        patch: Side of a patch, in pixels.
        grid: Side of the grid of patches that the position embeddings are for.
        n_heads: Heads of attention; D / 64 if not given.

    Example:
        >>> VisionTransformer(dim=64, depth=1, patch=4, grid=3)(torch.zeros(5, 3, 8, 8)).shape
        torch.Size([5, 64])
    """

    def __init__(self, *, dim: int, depth: int, patch: int, grid: int, n_heads: int | None = None) -> None:
        super().__init__()
        self.dim = dim
        self.grid = grid
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.mask_token = nn.Parameter(torch.zeros(1, dim))  # used in training alone, but part of the released weights
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + grid**2, dim))
        self.patch_embed = Patches(dim, patch)
        self.blocks = nn.Sequential(*(Block(dim, n_heads or dim // HEAD_DIM) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    @classmethod
    def of_state(cls, state: Mapping[str, Tensor]) -> VisionTransformer:
        """The network of the sizes of given weights, with these weights.

        Raises:
            RuntimeError, KeyError, AttributeError: They are of another network.
        """
        _, n, dim = state["pos_embed"].shape
        depth = len({name.split(".")[1] for name in state if name.startswith("blocks.")})
        patch = state["patch_embed.proj.weight"].shape[-1]
        grid = round((n - 1) ** 0.5)
        with torch.random.fork_rng(devices=[]):  # initial weights are drawn, and then overwritten
            network = cls(dim=dim, depth=depth, patch=patch, grid=grid)
        network.load_state_dict(dict(state))
        return network

    def positions(self, side: int) -> Tensor:
        """The position embeddings of a grid of another side, shape (1, 1 + side^2, D)."""
        if side == self.grid:
            return self.pos_embed
        of_class = self.pos_embed[:, :1]
        of_patches = self.pos_embed[:, 1:]
        grid = of_patches.unflatten(1, (self.grid, self.grid)).permute(0, 3, 1, 2)
        factor = (side + OFFSET) / self.grid
        grid = interpolate(grid, scale_factor=(factor, factor), mode="bicubic")
        return torch.cat([of_class, grid.permute(0, 2, 3, 1).flatten(1, 2)], 1)

    def forward(self, images: Tensor) -> Tensor:
        """The class token, shape (B, D), of images (B, 3, S, S), S a multiple of the patch."""
        patches = self.patch_embed(images)
        x = torch.cat([self.cls_token.expand(len(images), -1, -1), patches], 1)
        return self.norm(self.blocks(x + self.positions(round(patches.shape[1] ** 0.5))))[:, 0]
