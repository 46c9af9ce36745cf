"""The definition against matrices multiplied out, and its properties."""

import functools

import pytest
import torch

from patheval.kernels.definition import attention_by_definition

SEQ_LEN, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 40, 4, 2, 16
SM_SCALE = HEAD_DIM**-0.5


class Inputs:
    def __init__(self, seed: int = 0) -> None:
        draw = functools.partial(
            torch.randn,
            generator=torch.Generator().manual_seed(seed),
            dtype=torch.float64,
        )
        self.q = draw(SEQ_LEN, NUM_HEADS, HEAD_DIM)
        self.k = draw(SEQ_LEN, NUM_KV_HEADS, HEAD_DIM)
        self.v = draw(SEQ_LEN, NUM_KV_HEADS, HEAD_DIM)
        self.w = torch.nn.functional.normalize(draw(SEQ_LEN, NUM_KV_HEADS, HEAD_DIM), dim=-1)
        self.beta = 2 * torch.sigmoid(draw(SEQ_LEN, NUM_KV_HEADS))
        self.log_fgate = torch.nn.functional.logsigmoid(draw(SEQ_LEN, NUM_HEADS) + 2)

    def attend(
        self, gate_inside_scale: bool = True, **changes: torch.Tensor | None
    ) -> torch.Tensor:
        tensors = {**vars(self), **changes}
        return attention_by_definition(
            **tensors, sm_scale=SM_SCALE, gate_inside_scale=gate_inside_scale
        )


def plain_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=SM_SCALE, enable_gqa=True
    )
    return out.transpose(0, 1)


def householder(inputs: Inputs, token: int, kv_head: int) -> torch.Tensor:
    w, beta = inputs.w[token, kv_head], inputs.beta[token, kv_head]
    return torch.eye(HEAD_DIM, dtype=torch.float64) - beta * torch.outer(w, w)


@pytest.mark.parametrize("gate_inside_scale", [True, False])
def test_equals_explicit_products_of_matrices(gate_inside_scale: bool) -> None:
    inputs = Inputs()
    out = inputs.attend(gate_inside_scale)
    for head in range(NUM_HEADS):
        kv_head = head // (NUM_HEADS // NUM_KV_HEADS)
        for i in (0, 1, 17, SEQ_LEN - 1):
            logits = torch.empty(i + 1, dtype=torch.float64)
            product = torch.eye(HEAD_DIM, dtype=torch.float64)
            for j in range(i, -1, -1):
                gate = inputs.log_fgate[j + 1 : i + 1, head].sum()
                dot = inputs.q[i, head] @ product @ inputs.k[j, kv_head]
                logits[j] = SM_SCALE * dot + (SM_SCALE if gate_inside_scale else 1) * gate
                product = product @ householder(inputs, j, kv_head)
            expected = torch.softmax(logits, dim=0) @ inputs.v[: i + 1, kv_head]
            torch.testing.assert_close(out[i, head], expected, rtol=0, atol=1e-13)


def test_beta_zero_is_plain_attention() -> None:
    inputs = Inputs()
    out = inputs.attend(beta=torch.zeros_like(inputs.beta), log_fgate=None)
    torch.testing.assert_close(out, plain_attention(inputs.q, inputs.k, inputs.v))


def test_without_w_is_plain_attention() -> None:
    inputs = Inputs()
    out = inputs.attend(w=None, beta=None, log_fgate=None)
    torch.testing.assert_close(out, plain_attention(inputs.q, inputs.k, inputs.v))


def test_beta_two_is_plain_attention_of_rotated_keys_and_queries() -> None:
    inputs = Inputs()
    inputs.beta.fill_(2.0)
    rotations = torch.eye(HEAD_DIM, dtype=torch.float64).repeat(NUM_KV_HEADS, 1, 1)
    q, k = inputs.q.clone(), inputs.k.clone()
    group_size = NUM_HEADS // NUM_KV_HEADS
    for t in range(SEQ_LEN):
        for kv_head in range(NUM_KV_HEADS):
            # Orthogonal, so that H_i ... H_{j+1} = (H_i ... H_1) (H_j ... H_1)^T.
            rotations[kv_head] = householder(inputs, t, kv_head) @ rotations[kv_head]
            k[t, kv_head] = rotations[kv_head].T @ inputs.k[t, kv_head]
            heads = slice(kv_head * group_size, (kv_head + 1) * group_size)
            q[t, heads] = inputs.q[t, heads] @ rotations[kv_head]
    torch.testing.assert_close(inputs.attend(log_fgate=None), plain_attention(q, k, inputs.v))


def test_two_equal_reflections_cancel() -> None:
    inputs = Inputs()
    inputs.beta.zero_()
    inputs.beta[10:12] = 2.0
    inputs.w[11] = inputs.w[10]
    out = inputs.attend(log_fgate=None)
    plain = plain_attention(inputs.q, inputs.k, inputs.v)
    torch.testing.assert_close(out[11:], _with_reflected_key(inputs, 10)[11:])
    assert not torch.allclose(out[10], plain[10])


def _with_reflected_key(inputs: Inputs, token: int) -> torch.Tensor:
    """Plain attention in which one key has met only the second of the two reflections."""
    k = inputs.k.clone()
    for kv_head in range(NUM_KV_HEADS):
        k[token, kv_head] = householder(inputs, token + 1, kv_head) @ k[token, kv_head]
    return plain_attention(inputs.q, k, inputs.v)


def test_w_equal_to_the_unit_key_gives_deltanets_attention_matrix() -> None:
    inputs = Inputs()
    k = torch.nn.functional.normalize(inputs.k, dim=-1)
    out = inputs.attend(k=k, w=k, log_fgate=None)
    state_logits = torch.zeros(SEQ_LEN, NUM_HEADS, SEQ_LEN, dtype=torch.float64)
    for kv_head in range(NUM_KV_HEADS):
        # A delta-rule memory of one-hot values: row j of the state is what key j has become.
        state = torch.zeros(SEQ_LEN, HEAD_DIM, dtype=torch.float64)
        for t in range(SEQ_LEN):
            beta, key = inputs.beta[t, kv_head], k[t, kv_head]
            one_hot = torch.eye(SEQ_LEN, dtype=torch.float64)[t]
            state = state - beta * torch.outer(state @ key, key) + torch.outer(one_hot, key)
            for head in range(kv_head * 2, kv_head * 2 + 2):
                state_logits[t, head] = state @ inputs.q[t, head]
    future = torch.ones(SEQ_LEN, SEQ_LEN, dtype=torch.bool).triu(1).unsqueeze(1)
    weights = torch.softmax((SM_SCALE * state_logits).masked_fill(future, -torch.inf), dim=-1)
    expected = torch.einsum("thj,jhd->thd", weights, inputs.v.repeat_interleave(2, dim=1))
    torch.testing.assert_close(out, expected)


def test_gate_of_zeros_changes_nothing() -> None:
    inputs = Inputs()
    gated = inputs.attend(log_fgate=torch.zeros_like(inputs.log_fgate))
    torch.testing.assert_close(gated, inputs.attend(log_fgate=None), rtol=0, atol=0)


def test_gate_inside_the_scale_is_a_scaled_gate_outside() -> None:
    inputs = Inputs()
    inside = inputs.attend(gate_inside_scale=True)
    outside = inputs.attend(gate_inside_scale=False, log_fgate=inputs.log_fgate * SM_SCALE)
    torch.testing.assert_close(inside, outside)
    assert not torch.allclose(inside, inputs.attend(gate_inside_scale=False))


def test_no_token_sees_a_later_one() -> None:
    inputs, other = Inputs(), Inputs(seed=1)
    for name, tensor in vars(inputs).items():
        tensor[25:] = vars(other)[name][25:]
    torch.testing.assert_close(inputs.attend()[:25], Inputs().attend()[:25], rtol=0, atol=0)


def test_computes_in_the_dtype_of_q() -> None:
    inputs = Inputs()
    out = inputs.attend(q=inputs.q.bfloat16())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), inputs.attend(), rtol=0, atol=0.1)


def test_w_without_beta_is_refused() -> None:
    with pytest.raises(ValueError, match="w and beta belong together"):
        Inputs().attend(beta=None)
