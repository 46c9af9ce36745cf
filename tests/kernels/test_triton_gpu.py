"""The Triton kernels on a GPU, in bf16, at real sizes.

The limit of an error is that of the same formula computed in bf16 throughout, on the same inputs.
"""

import itertools
import random

import pytest
import torch
from paged_sequences import KINDS, Cache, Inputs, Sizes, make_inputs, run_in_steps

from patheval.kernels import PagedBatch, PageLayout, paged_attention
from patheval.kernels.definition import attention_by_definition

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

LENGTHS = [1, 2, 63, 64, 65, 127, 255, 256, 257, 1000, 4097, 20000]


def inputs_of(kind: str, seq_len: int, head_dim: int, **options: object) -> Inputs:
    defaults = dict(seed=seq_len, dtype=torch.bfloat16, num_heads=4, num_kv_heads=2)
    inputs = make_inputs(seq_len, head_dim=head_dim, **KINDS[kind], **(defaults | options))
    return inputs.to("cuda")


def run(kind: str, inputs: Inputs, steps: object) -> torch.Tensor:
    sizes = Sizes(256, 32, inputs.q.shape[-1])
    inside = kind != "fox"
    return run_in_steps([inputs], steps, sizes, impl="triton", gate_inside_scale=inside)[0]


def errors(kind: str, inputs: Inputs, out: torch.Tensor) -> tuple[float, float]:
    """Root-mean-square errors of `out` and of the formula in bf16."""
    options = dict(sm_scale=inputs.q.shape[-1] ** -0.5, gate_inside_scale=kind != "fox")
    truth = inputs.by_definition(gate_inside_scale=kind != "fox")
    rounded = (None if x is None else x.bfloat16() for x in vars(inputs).values())
    plain = attention_by_definition(*rounded, **options)

    def rms(got: torch.Tensor) -> float:
        assert not got.isnan().any()
        return (got.double() - truth).square().mean().sqrt().item()

    return rms(out), rms(plain)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("kind", ["path", "path-fox"])
def test_errors_at_all_lengths(kind: str, head_dim: int) -> None:
    for seq_len in LENGTHS:
        inputs = inputs_of(kind, seq_len, head_dim)
        ours, plain = errors(kind, inputs, run(kind, inputs, lambda _: 10**6))
        assert ours <= plain, seq_len


@pytest.mark.parametrize("cut", [64, 100, 513])
@pytest.mark.parametrize("kind", KINDS)
def test_errors_of_chunked_prefill_and_decode(kind: str, cut: int) -> None:
    inputs = inputs_of(kind, 3000, 64)
    steps = itertools.chain([cut] * (2800 // cut), itertools.repeat(1))
    ours, plain = errors(kind, inputs, run(kind, inputs, lambda _: next(steps)))
    assert ours <= plain


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 4), (8, 2), (8, 1)])
def test_errors_with_grouped_heads(num_heads: int, num_kv_heads: int) -> None:
    inputs = inputs_of("path-fox", 1000, 64, num_heads=num_heads, num_kv_heads=num_kv_heads)
    steps = itertools.chain([900], itertools.repeat(1))
    ours, plain = errors("path-fox", inputs, run("path-fox", inputs, lambda _: next(steps)))
    assert ours <= plain


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("beta", [0.0, 1e-3, 1.0, 1.999, 2.0])
@pytest.mark.parametrize("direction", ["random", "constant", "repeated", "zero"])
def test_errors_of_extreme_transport(head_dim: int, beta: float, direction: str) -> None:
    inputs = inputs_of("path", 1000, head_dim)
    assert inputs.w is not None and inputs.beta is not None
    inputs.beta.fill_(beta)
    if direction == "constant":
        inputs.w[:] = inputs.w[0].clone()
    if direction == "repeated":
        inputs.w[1::2] = inputs.w[::2]
    if direction == "zero":
        inputs.w.zero_()
    ours, plain = errors("path", inputs, run("path", inputs, lambda _: 10**6))
    assert ours <= plain


@pytest.mark.parametrize("log_fgate", [0.0, -1e-6, -1e-3, -0.1, -5.0, -40.0])
@pytest.mark.parametrize("kind", ["path-fox", "fox"])
def test_errors_of_extreme_gates(kind: str, log_fgate: float) -> None:
    inputs = inputs_of(kind, 1000, 64)
    assert inputs.log_fgate is not None
    inputs.log_fgate.fill_(log_fgate)
    steps = itertools.chain([900], itertools.repeat(1))
    ours, plain = errors(kind, inputs, run(kind, inputs, lambda _: next(steps)))
    assert ours <= plain


@pytest.mark.parametrize("seq_len", [1000, 4097])
def test_errors_are_below_flas(seq_len: int) -> None:
    fla = pytest.importorskip("fla.ops.path_attn")
    for head_dim in (64, 128):
        inputs = inputs_of("path", seq_len, head_dim)
        ours, _ = errors("path", inputs, run("path", inputs, lambda _: 10**6))
        columns = [x[None] for x in (inputs.q, inputs.k, inputs.v, inputs.w, inputs.beta)]
        with torch.no_grad():
            theirs, _ = errors("path", inputs, fla.parallel_path_attn(*columns)[0][0])
        assert ours < theirs, head_dim


def test_8192_decoded_tokens_err_at_most_twice_a_prefill() -> None:
    inputs = inputs_of("path", 8192, 64, num_heads=2)
    whole, plain = errors("path", inputs, run("path", inputs, lambda _: 10**6))
    decoded, _ = errors("path", inputs, run("path", inputs, lambda _: 1))
    assert decoded <= 2 * whole
    assert decoded <= plain


def test_256_sequences_at_once() -> None:
    rng = random.Random(0)
    lengths = [rng.randrange(1, 700) for _ in range(256)]
    sequences = [inputs_of("path-fox", n, 64) for n in lengths]
    outputs = run_in_steps(
        sequences,
        lambda rng: rng.choice([1, 1, 200, 700]),
        Sizes(256, 32, 64),
        impl="triton",
        gate_inside_scale=True,
    )
    for i in range(0, 256, 16):
        ours, plain = errors("path-fox", sequences[i], outputs[i])
        assert ours <= max(plain, 1e-3), lengths[i]


def test_pages_and_rows_beyond_2_to_the_31_elements() -> None:
    """The last pages of a pool of 34 GB, and rows of queries that lie 2^22 elements apart."""
    inputs = inputs_of("path", 600, 64)
    cache = Cache([600], inputs, Sizes(256, 32, 64), seed=0, spare_pages=200_000)
    cache.block_table[0] = torch.tensor([200_003, 200_001, 200_002])
    assert cache.pages.keys.stride(0) * 200_003 > 2**31
    far_apart = torch.empty(600, 1 << 22, device="cuda", dtype=torch.bfloat16)
    q = far_apart[:, : inputs.q[0].numel()].unflatten(1, inputs.q.shape[1:])
    q.copy_(inputs.q)
    assert q.stride(0) * 599 > 2**31
    outputs = [
        paged_attention(
            q[first:last],
            *inputs.rows(first, last)[1:],
            cache.pages,
            cache.batch([last - first], [last]),
            sm_scale=64**-0.5,
            gate_inside_scale=True,
            impl="triton",
        )
        for first, last in ((0, 599), (599, 600))
    ]
    ours, plain = errors("path", inputs, torch.cat(outputs))
    assert ours <= plain


def test_more_than_65535_programs_on_an_axis() -> None:
    num_requests, query_len = 9000, 2
    layout = PageLayout(
        page_size=256,
        chunk_size=32,
        num_heads=1,
        num_kv_heads=1,
        head_dim=64,
        dtype=torch.bfloat16,
        has_transport=True,
        has_gate=False,
    )
    assert num_requests * (256 // 32) > 65535
    pages = layout.views(layout.empty_pool(num_requests, "cuda").fill_(-1))
    inputs = inputs_of("path", num_requests * query_len, 64, num_heads=1, num_kv_heads=1)
    batch = PagedBatch.build(
        list(range(0, num_requests * query_len + 1, query_len)),
        [query_len] * num_requests,
        torch.randperm(num_requests, device="cuda").to(torch.int32)[:, None],
        page_size=256,
        chunk_size=32,
    )
    out = paged_attention(
        *vars(inputs).values(),
        pages,
        batch,
        sm_scale=0.125,
        gate_inside_scale=True,
        impl="triton",
    )
    for request in (0, 8191, 8192, 8999):
        rows = Inputs(*inputs.rows(request * 2, request * 2 + 2))
        truth = rows.by_definition(gate_inside_scale=True)
        torch.testing.assert_close(
            out[request * 2 : request * 2 + 2].double(), truth, rtol=2**-7, atol=2**-7
        )


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_prefill_never_waits_for_the_gpu(kind: str) -> None:
    # Long enough for groups of pages that are read from afar, whose numbers the host makes.
    inputs = inputs_of(kind, 3000, 64)
    options = dict(sm_scale=0.125, gate_inside_scale=kind != "fox", impl="triton")
    cache = Cache([3000], inputs, Sizes(256, 32, 64), seed=0)
    seq_lens = torch.tensor([3000], dtype=torch.int32, device="cuda")

    def step() -> torch.Tensor:
        batch = PagedBatch.build(
            [0, 3000], seq_lens, cache.block_table, page_size=256, chunk_size=32,
            host_seq_lens=[3000],
        )  # fmt: skip
        assert batch.far_groups is not None
        return paged_attention(*vars(inputs).values(), cache.pages, batch, **options)

    expected = step()  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(out, expected, rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_step_is_replayed_with_later_lengths(kind: str) -> None:
    inputs = [inputs_of(kind, 700, 64), inputs_of(kind, 300, 64)]
    starts = [600, 270]
    options = dict(sm_scale=0.125, gate_inside_scale=kind != "fox", impl="triton")

    def joined(columns: list[list[torch.Tensor | None]]) -> list[torch.Tensor | None]:
        return [None if x[0] is None else torch.cat(x) for x in zip(*columns, strict=True)]

    def decode(*, captured: bool) -> torch.Tensor:
        cache = Cache([700, 700], inputs[0], Sizes(256, 32, 64), seed=0)
        context = joined([p.rows(0, n) for p, n in zip(inputs, starts, strict=True)])
        paged_attention(*context, cache.pages, cache.batch(starts, starts), **options)
        lens = torch.zeros(2, dtype=torch.int32, device="cuda")
        batch = PagedBatch.of_single_tokens(
            2,
            torch.arange(3, dtype=torch.int32, device="cuda"),
            lens,
            cache.block_table,
            page_size=256,
            chunk_size=32,
        )
        rows = joined([p.rows(n, n + 1) for p, n in zip(inputs, starts, strict=True)])
        out = torch.full_like(inputs[0].q[:2], torch.nan)
        graph = torch.cuda.CUDAGraph()
        outputs = []
        for i in range(30):
            now = joined([p.rows(n + i, n + i + 1) for p, n in zip(inputs, starts, strict=True)])
            for row, new in zip(rows, now, strict=True):
                if row is not None:
                    row.copy_(new)
            lens.copy_(torch.tensor([n + i + 1 for n in starts]))
            if captured and i == 1:
                with torch.cuda.graph(graph):
                    paged_attention(*rows, cache.pages, batch, out=out, **options)
            if captured and i >= 1:
                graph.replay()
            else:
                paged_attention(*rows, cache.pages, batch, out=out, **options)
            outputs.append(out.clone())
        return torch.stack(outputs)

    eager = decode(captured=False)
    assert not eager.isnan().any()
    assert torch.equal(decode(captured=True), eager)
