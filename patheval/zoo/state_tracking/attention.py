"""PaTH, PaTH-FoX, FoX and plain attention over a batch, differentiable and without custom kernels.

For short sequences: the whole matrix of logits is in memory at once.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_SIZE = 128


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor | None = None,
    beta: Tensor | None = None,
    log_fgate: Tensor | None = None,
    *,
    sm_scale: float,
    gate_scale: float,
    chunk_size: int = CHUNK_SIZE,
) -> Tensor:
    """Causal attention, as `patheval.kernels.definition` defines it.

    Args:
        q: [batch, seq_len, head_dim], float32 or wider, as all others.
        k: [batch, seq_len, head_dim].
        v: [batch, seq_len, value_dim].
        w: [batch, seq_len, head_dim], unit L2 norm; None without PaTH.
        beta: [batch, seq_len], in (0, 2); None without PaTH.
        log_fgate: [batch, seq_len], natural log, <= 0; None without a forget gate.
        sm_scale: Factor of the dot products.
        gate_scale: Factor of the sums of `log_fgate`.
        chunk_size: Tokens of a chunk under PaTH; a power of 2.

    Returns:
        [batch, seq_len, value_dim].
    """
    seq_len = q.shape[1]
    if w is None or beta is None:
        logits = q @ k.mT
    else:
        logits = _path_logits(q, k, w, beta, min(chunk_size, 1 << (seq_len - 1).bit_length()))
    logits = sm_scale * logits
    if log_fgate is not None:
        decay = gate_scale * log_fgate.cumsum(dim=1)
        logits = logits + (decay.unsqueeze(2) - decay.unsqueeze(1))
    future = torch.ones(seq_len, seq_len, dtype=torch.bool, device=q.device).triu(1)
    return torch.softmax(logits.masked_fill(future, -torch.inf), dim=-1) @ v


def _path_logits(q: Tensor, k: Tensor, w: Tensor, beta: Tensor, chunk_size: int) -> Tensor:
    """The products q_i^T H_i ... H_{j+1} k_j, [batch, seq_len, seq_len]; anything where j > i.

    With the rows of W the w of one chunk and M = (I + strict_lower(diag(beta) W W^T))^-1 diag(beta)
    the product H_n ... H_1 over the chunk is I - W^T M W. Inside a chunk, keys are carried to its
    end and queries to its start; then the queries of later chunks are moved past it, from right to
    left.
    """
    seq_len, head_dim = q.shape[1:]
    num_chunks = -(-seq_len // chunk_size)
    padding = num_chunks * chunk_size - seq_len

    def chunked(x: Tensor) -> Tensor:
        padded = F.pad(x, (0, 0, 0, padding))
        return padded.view(len(x), num_chunks, chunk_size, -1)

    q, k, w, beta = chunked(q), chunked(k), chunked(w), chunked(beta.unsqueeze(-1))
    mixing = _inverse(beta * (w @ w.mT)) * beta.mT
    moved_w = mixing @ w
    q_along_w, k_along_w = (q @ w.mT).tril(), mixing @ (w @ k.mT).tril(-1)
    inside = q @ k.mT - q_along_w @ k_along_w
    to_start = q - q_along_w @ moved_w
    to_end = k - k_along_w.mT @ w

    columns: list[Tensor] = []
    queries = q.new_zeros(len(q), 0, head_dim)
    for chunk in reversed(range(num_chunks)):
        later = queries @ to_end[:, chunk].mT
        column = torch.cat([inside[:, chunk], later], dim=1)
        columns.append(F.pad(column, (0, 0, chunk * chunk_size, 0)))
        queries = queries - (queries @ w[:, chunk].mT) @ moved_w[:, chunk]
        queries = torch.cat([to_start[:, chunk], queries], dim=1)
    return torch.cat(columns[::-1], dim=2)[:, :seq_len, :seq_len]


def _inverse(matrix: Tensor) -> Tensor:
    """Inverse of I + the strictly lower part of [..., n, n]; n is a power of 2.

    By halves, which is as stable as substitution and made of matrix products only.
    """
    size = matrix.shape[-1]
    if size == 1:
        return torch.ones_like(matrix)
    half = size // 2
    diagonal = torch.stack([matrix[..., :half, :half], matrix[..., half:, half:]])
    first, last = _inverse(diagonal)
    lower = -last @ matrix[..., half:, :half] @ first
    return torch.cat([F.pad(first, (0, half)), torch.cat([lower, last], dim=-1)], dim=-2)
