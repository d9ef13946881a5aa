"""The vision transformer of DINOv2, reduced to the layers that the class token needs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, scaled_dot_product_attention

__all__ = ["VisionTransformer"]

HEAD_DIM = 64
# When position embeddings are resized, this number is added to the side of the new grid, as in the authors' code.
OFFSET = 0.1


class LayerScale(nn.Module):
    """A layer that multiplies each channel by a learnt factor."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Scale the channels of x (*B, D)."""
        return x * self.gamma


class Attention(nn.Module):
    """A self-attention layer with several heads."""

    def __init__(self, dim: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Apply self-attention to the N tokens x (B, N, D); the result has the shape of x."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the two layers to each token of x (B, N, D); the result has the shape of x."""
        return self.fc2(nn.functional.gelu(self.fc1(x)))


class Block(nn.Module):
    """A transformer block: attention, then a feed-forward network, each with layer norm, layer scale and a shortcut."""

    def __init__(self, dim: int, n_heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, n_heads)
        self.mlp = FeedForward(dim)
        self.ls1 = LayerScale(dim)
        self.ls2 = LayerScale(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Transform the tokens x (B, N, D); the result has the shape of x."""
        x = x + self.ls1(self.attn(self.norm1(x)))
        return x + self.ls2(self.mlp(self.norm2(x)))


class Patches(nn.Module):
    """The linear embedding of an image's patches as tokens."""

    def __init__(self, dim: int, side: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, side, stride=side)

    def forward(self, images: Tensor) -> Tensor:
        """Embed the N patches of images (B, 3, H, W) as tokens (B, N, D)."""
        return self.proj(images).flatten(2).transpose(1, 2)


class VisionTransformer(nn.Module):
    """A vision transformer that maps images to the normalised class token and has the parameter names of DINOv2.

    If the patch grid of an image differs from that of the position embeddings, these are resized bicubically.
    Reference: Oquab et al. 2023, arXiv 2304.07193, and code.

    Args:
        dim: The width D of a token.
        depth: The number of blocks.
        patch: The side of a patch, in pixels.
        grid: The side, in patches, of the grid that the position embeddings were trained for.
        n_heads: The number of attention heads; D / 64 if not given.

    Example:
        >>> VisionTransformer(dim=64, depth=1, patch=4, grid=3)(torch.zeros(5, 3, 8, 8)).shape
        torch.Size([5, 64])
    """

    def __init__(self, *, dim: int, depth: int, patch: int, grid: int, n_heads: int | None = None) -> None:
        super().__init__()
        self.dim = dim
        self.grid = grid
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.mask_token = nn.Parameter(torch.zeros(1, dim))  # unused here, but part of the published weights
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + grid**2, dim))
        self.patch_embed = Patches(dim, patch)
        self.blocks = nn.Sequential(*(Block(dim, n_heads or dim // HEAD_DIM) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    @classmethod
    def of_state(cls, state: Mapping[str, Tensor]) -> VisionTransformer:
        """Build a network from the given weights; their shapes determine the sizes of the network.

        Raises:
            RuntimeError, KeyError, AttributeError: If the weights belong to another kind of network.
        """
        _, n, dim = state["pos_embed"].shape
        depth = len({name.split(".")[1] for name in state if name.startswith("blocks.")})
        patch = state["patch_embed.proj.weight"].shape[-1]
        grid = round((n - 1) ** 0.5)
        # The constructor draws initial weights, which are overwritten below. fork_rng keeps this from changing the
        # caller's random state.
        with torch.random.fork_rng(devices=[]):
            network = cls(dim=dim, depth=depth, patch=patch, grid=grid)
        network.load_state_dict(dict(state))
        return network

    def positions(self, side: int) -> Tensor:
        """Return the position embeddings for a grid of ``side`` x ``side`` patches, shape (1, 1 + side^2, D)."""
        if side == self.grid:
            return self.pos_embed
        of_class = self.pos_embed[:, :1]
        of_patches = self.pos_embed[:, 1:]
        grid = of_patches.unflatten(1, (self.grid, self.grid)).permute(0, 3, 1, 2)
        factor = (side + OFFSET) / self.grid
        grid = interpolate(grid, scale_factor=(factor, factor), mode="bicubic")
        return torch.cat([of_class, grid.permute(0, 2, 3, 1).flatten(1, 2)], 1)

    def forward(self, images: Tensor) -> Tensor:
        """Compute the class token, shape (B, D), of images (B, 3, S, S), where S is a multiple of ``patch``."""
        patches = self.patch_embed(images)
        x = torch.cat([self.cls_token.expand(len(images), -1, -1), patches], 1)
        return self.norm(self.blocks(x + self.positions(round(patches.shape[1] ** 0.5))))[:, 0]
