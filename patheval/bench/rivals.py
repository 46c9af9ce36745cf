"""Other kernels, timed on the same shapes in the same run."""

from __future__ import annotations

from collections.abc import Callable

import torch

from patheval.bench.steps import DTYPE, Shape, random_tokens
from patheval.errors import PrerequisiteError

PREFILL_RIVALS = ("fa3", "cudnn", "fla")
DECODE_RIVALS = ("fa3",)


def prefill_rival(name: str, shape: Shape) -> Callable[[], object]:
    """The causal forward of `name` for `shape`; fa3 and cudnn compute plain attention.

    Raises:
        PrerequisiteError: Its package is not installed.
    """
    tokens = random_tokens(shape, shape.batch * shape.seq_len, 0)
    q, k, v = tokens.q, tokens.k, tokens.v
    if name == "fa3":
        flash = _flash_attention()
        starts = torch.arange(0, len(q) + 1, shape.seq_len, dtype=torch.int32, device="cuda")
        return lambda: flash(
            q, k, v,
            max_seqlen_q=shape.seq_len, cu_seqlens_q=starts,
            max_seqlen_k=shape.seq_len, cu_seqlens_k=starts,
            causal=True, fa_version=3,
        )  # fmt: skip
    q, k, v = (x.unflatten(0, (shape.batch, -1)) for x in (q, k, v))
    if name == "cudnn":
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q, k, v = (x.transpose(1, 2) for x in (q, k, v))

        def attend() -> object:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        return attend
    try:
        from fla.ops.forgetting_attn import parallel_forgetting_attn
        from fla.ops.path_attn import parallel_path_attn
    except ImportError as error:
        raise PrerequisiteError(
            "the rival fla is not installed; pip install flash-linear-attention or leave it out"
        ) from error
    gate, w, beta = (
        None if x is None else x.unflatten(0, (shape.batch, -1))
        for x in (tokens.log_fgate, tokens.w, tokens.beta)
    )
    if not shape.has_transport:
        return _without_gradients(lambda: parallel_forgetting_attn(q, k, v, gate))
    return _without_gradients(lambda: parallel_path_attn(q, k, v, w, beta, gate))


def decode_rival(name: str, shape: Shape, page_size: int) -> Callable[[], object]:
    """One decode step of plain attention over a paged cache of `page_size` tokens a page.

    Raises:
        PrerequisiteError: Its package is not installed.
    """
    assert name == "fa3"
    flash = _flash_attention()
    num_pages = -(-(shape.seq_len + 1) // page_size)
    size = (shape.batch * num_pages, page_size, shape.num_heads, shape.head_dim)
    keys, values = (torch.randn(size, device="cuda", dtype=DTYPE) for _ in range(2))
    order = torch.randperm(len(keys), device="cuda", dtype=torch.int32)
    q = torch.randn(shape.batch, shape.num_heads, shape.head_dim, device="cuda", dtype=DTYPE)
    starts = torch.arange(shape.batch + 1, dtype=torch.int32, device="cuda")
    lens = torch.full((shape.batch,), shape.seq_len + 1, dtype=torch.int32, device="cuda")
    table = order.view(shape.batch, num_pages)
    return lambda: flash(
        q, keys, values,
        max_seqlen_q=1, cu_seqlens_q=starts, max_seqlen_k=shape.seq_len + 1, seqused_k=lens,
        block_table=table, causal=True, fa_version=3,
    )  # fmt: skip


def _flash_attention() -> Callable[..., object]:
    try:
        from vllm.vllm_flash_attn import flash_attn_varlen_func
    except ImportError as error:
        raise PrerequisiteError(
            "the rival fa3 comes with vllm's CUDA build; install the extra gpu or leave it out"
        ) from error
    return flash_attn_varlen_func


def _without_gradients(call: Callable[[], object]) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            return call()

    return run
