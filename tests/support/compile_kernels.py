"""Compiles the Triton kernels for a GPU that need not be there; prints what each one takes.

Arguments: compute capability (such as 89), bytes of shared memory that a block can have, and names
of attention kinds. A line of output is JSON: kernel, head_dim, shared bytes.
"""

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
from paged_sequences import KINDS, Cache, Sizes, make_inputs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from patheval.kernels import triton_impl
from patheval.kernels.triton_impl.device import DeviceFacts

CAPABILITY, SHARED_BYTES = int(sys.argv[1]), int(sys.argv[2])
SEQ_LEN = 2600


class Driver:
    """What compilation asks of a driver."""

    utils = SimpleNamespace(get_device_properties=lambda _: {"max_shared_mem": SHARED_BYTES})

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", CAPABILITY, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def main() -> None:
    driver.set_active(Driver())
    triton_impl.device_facts = lambda _: DeviceFacts(132, SHARED_BYTES, CAPABILITY >= 90)
    run, seen = JITFunction.run, set()

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        if kernel.hash not in seen:
            seen.add(kernel.hash)
            facts = {"kernel": self.fn.__name__, "head_dim": options.get("HEAD_DIM")}
            print(json.dumps(facts | {"shared": kernel.metadata.shared}), flush=True)  # noqa: T201
        return kernel

    JITFunction.run = compile_only
    for head_dim in (64, 128):
        for kind in sys.argv[3:]:
            compile_kind(kind, head_dim)


def compile_kind(kind: str, head_dim: int) -> None:
    """A prefill with gathered groups and a decode step of one kind."""
    inputs = make_inputs(SEQ_LEN, seed=0, head_dim=head_dim, dtype=torch.bfloat16, **KINDS[kind])
    conv_size = 3 if inputs.w is not None else 0
    cache = Cache([SEQ_LEN], inputs, Sizes(256, 32, head_dim), seed=0, conv_size=conv_size)
    for num_tokens in (SEQ_LEN, 1):
        batch = cache.batch([num_tokens], [SEQ_LEN])
        rows = inputs.rows(0, num_tokens)
        if inputs.w is not None:
            projected = inputs.k[:num_tokens].flatten(1)
            taps = torch.zeros(projected.shape[1], conv_size, dtype=projected.dtype)
            triton_impl.householder_vectors(projected, taps, cache.pages, batch)
        triton_impl.paged_attention(
            *rows, cache.pages, batch, torch.empty_like(rows[0]),
            sm_scale=1.0, gate_inside_scale=True, skip_pages=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
