"""The GGUF block format Q1_0: 128 weights of a row share an f16 scale d; a set bit is +d, a clear one -d."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BLOCK = 128  # weights
TILE = 1024  # blocks
BLOCK_BYTES = 18  # f16 scale, then 128 bits, least significant first


def quantize(w: Tensor) -> Tensor:
    """The weights [..., K] after a round trip through Q1_0.

    The input is rounded to f16 first, so that both the scale and the signs are those of f16 weights.
    """
    out = torch.empty(w.shape)
    # In pieces that stay in the cache: the passes below cost a multiple of that over a whole model.
    for source, target in zip(
        w.detach().reshape(-1, BLOCK).split(TILE), out.view(-1, BLOCK).split(TILE), strict=True
    ):
        blocks = source.half().float()
        scale = torch.linalg.vector_norm(blocks, 1, -1, keepdim=True).div_(BLOCK).half().float()
        torch.copysign(scale, blocks.add_(0.0), out=target)  # -0 + 0 is +0, whose bit is set
    return out


def pack(w: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Weights [N, K] -> blocks [N, K / 128 * 18 bytes]; unpack gives exactly quantize(w)."""
    # From the quantised weights, whose magnitude is the scale: no second sum that could round differently.
    blocks = quantize(torch.from_numpy(np.ascontiguousarray(w))).numpy().reshape(len(w), -1, BLOCK)
    scale = np.abs(blocks[..., :1]).astype("<f2").view(np.uint8)
    # signbit, because a scale of zero still has signs
    bits = np.packbits(~np.signbit(blocks), axis=-1, bitorder="little")
    return np.concatenate((scale, bits), -1).reshape(len(w), -1)


def unpack(packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Blocks [N, K / 128 * 18 bytes] -> weights [N, K]."""
    blocks = np.ascontiguousarray(packed).reshape(len(packed), -1, BLOCK_BYTES)
    scale = np.ascontiguousarray(blocks[..., :2]).view("<f2").astype(np.float32)
    bits = np.unpackbits(blocks[..., 2:], axis=-1, bitorder="little").astype(bool)
    return np.where(bits, scale, -scale).reshape(len(packed), -1)
