"""What a 16-bit model does not round to 16 bits."""

import torch
from vllm.config import VllmConfig, set_current_vllm_config

from patheval.vllm_plugin.models import ResidualNorm


def test_residual_stream_keeps_what_bf16_would_lose() -> None:
    with set_current_vllm_config(VllmConfig()):
        norm = ResidualNorm(64, eps=1e-6).to(torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    norm.weight.data.copy_(torch.rand(64, generator=generator) + 0.5)
    blocks = [torch.randn(5, 64, generator=generator).to(torch.bfloat16) for _ in range(50)]
    residual = blocks[0]
    exact = residual.double()
    for block in blocks[1:]:
        normed, residual = norm(block, residual)
        exact = exact + block.double()
    assert residual.dtype == torch.float32 and normed.dtype == torch.bfloat16
    torch.testing.assert_close(residual.double(), exact, rtol=0, atol=50 * 2**-24 * 64)
    scale = torch.rsqrt(exact.square().mean(-1, keepdim=True) + 1e-6)
    expected = exact * scale * norm.weight.double()
    # Half a unit in bf16's last place, and fp32's own rounding.
    torch.testing.assert_close(normed.double(), expected, rtol=2**-8 + 1e-5, atol=0)
