"""PaTH, PaTH-FoX, FoX and plain attention by their definition: one token after another.

Every other implementation is tested against this one, so it has no chunks, pages or tricks.
"""

import torch


def attention_by_definition(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    w: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    log_fgate: torch.Tensor | None = None,
    *,
    sm_scale: float,
    gate_inside_scale: bool,
) -> torch.Tensor:
    """Causal attention of one sequence, in O(seq_len ** 2) time, computed in q's dtype.

    With H_t = I - beta_t w_t w_t^T, token t multiplies every earlier key by H_t and then adds its
    own key, so that the logit of query i and key j is sm_scale * q_i^T H_i ... H_{j+1} k_j. Query
    head h reads kv head h // (num_heads / num_kv_heads).

    Args:
        q: [seq_len, num_heads, head_dim].
        k: [seq_len, num_kv_heads, head_dim].
        v: [seq_len, num_kv_heads, value_dim].
        w: [seq_len, num_kv_heads, head_dim], unit L2 norm; None without PaTH.
        beta: [seq_len, num_kv_heads], in (0, 2); None without PaTH.
        log_fgate: [seq_len, num_heads], natural log, <= 0; None without a forget gate. The logit of
            i and j gains its sum over tokens j+1 to i.
        sm_scale: Factor of the dot products.
        gate_inside_scale: Whether `log_fgate` is added before `sm_scale` (PaTH-FoX) or after (FoX).

    Returns:
        [seq_len, num_heads, value_dim], in q's dtype.

    Raises:
        ValueError: Only one of w and beta is given.
    """
    if (w is None) != (beta is None):
        raise ValueError("w and beta belong together: pass both or neither")
    seq_len, num_heads, _ = q.shape
    group_size = num_heads // k.shape[1]

    def per_query_head(x: torch.Tensor) -> torch.Tensor:
        return x.to(q.dtype).repeat_interleave(group_size, dim=1)

    keys, values = per_query_head(k), per_query_head(v)
    gate_scale = sm_scale if gate_inside_scale else 1.0
    out = torch.empty_like(values)
    decay = q.new_zeros(seq_len, num_heads)
    for i in range(seq_len):
        if w is not None and beta is not None:
            w_i, beta_i = per_query_head(w[i : i + 1])[0], per_query_head(beta[i : i + 1])[0]
            along_w = torch.einsum("jhd,hd->jh", keys[:i], w_i)
            keys[:i] -= torch.einsum("h,jh,hd->jhd", beta_i, along_w, w_i)
        if log_fgate is not None:
            decay[:i] += log_fgate[i].to(q.dtype)
        logits = sm_scale * torch.einsum("hd,jhd->jh", q[i], keys[: i + 1])
        weights = torch.softmax(logits + gate_scale * decay[: i + 1], dim=0)
        out[i] = torch.einsum("jh,jhd->hd", weights, values[: i + 1])
    return out
