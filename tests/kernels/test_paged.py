"""Paged attention against the definition: any cut of a sequence into steps, any order of pages."""

import random

import paged_sequences
import pytest
import torch
import torch.nn.functional as F
from paged_sequences import KINDS, Cut, Inputs, Sizes

from patheval.kernels import PagedBatch, PageLayout, householder_vectors, paged_attention

PAGE_SIZE, CHUNK_SIZE, HEAD_DIM = 32, 8, 16
SIZES = Sizes(PAGE_SIZE, CHUNK_SIZE, HEAD_DIM)

CUTS: dict[str, Cut] = {
    "whole": lambda _: 10**6,
    "one-by-one": lambda _: 1,
    "chunks": lambda _: CHUNK_SIZE,
    "random": lambda rng: rng.choice([0, 1, 1, 2, 3, 7, 8, 9, 31, 32, 33, 50]),
}


def make_inputs(seq_len: int, **options: object) -> Inputs:
    return paged_sequences.make_inputs(seq_len, head_dim=HEAD_DIM, **options)


def run_in_steps(sequences: list[Inputs], cut: Cut, **options: object) -> list[torch.Tensor]:
    return paged_sequences.run_in_steps(sequences, cut, SIZES, impl="reference", **options)


def make_cache(*arguments: object, **options: object) -> paged_sequences.Cache:
    return paged_sequences.Cache(*arguments, SIZES, **options)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_definition_for_any_cut_into_steps(kind: str, cut: str) -> None:
    lengths = [70, 37, 5, 64, 1, 33]
    sequences = [make_inputs(n, seed=n, **KINDS[kind]) for n in lengths]
    inside = kind != "fox"
    outputs = run_in_steps(sequences, CUTS[cut], gate_inside_scale=inside)
    for out, sequence in zip(outputs, sequences, strict=True):
        expected = sequence.by_definition(gate_inside_scale=inside)
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_kv_heads", [1, 4])
def test_every_group_size_reads_its_own_kv_head(num_kv_heads: int) -> None:
    sequence = make_inputs(45, seed=3, num_kv_heads=num_kv_heads)
    (out,) = run_in_steps([sequence], CUTS["random"], gate_inside_scale=True)
    expected = sequence.by_definition(gate_inside_scale=True)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)


def test_fp32_errs_no_more_than_its_rounding_step_allows() -> None:
    sequence = make_inputs(200, seed=4, dtype=torch.float32)
    (out,) = run_in_steps([sequence], CUTS["random"], gate_inside_scale=True)
    expected = sequence.by_definition(gate_inside_scale=True)
    assert (out - expected).square().mean().sqrt() < 2e-7 * expected.abs().max()


@pytest.mark.parametrize("log_fgate", [0.0, -1e-6, -40.0])
def test_extreme_gates(log_fgate: float) -> None:
    sequence = make_inputs(70, seed=5)
    assert sequence.log_fgate is not None
    sequence.log_fgate.fill_(log_fgate)
    (out,) = run_in_steps([sequence], CUTS["random"], gate_inside_scale=True)
    expected = sequence.by_definition(gate_inside_scale=True)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("beta", [0.0, 1e-7, 1.0, 2.0])
@pytest.mark.parametrize("direction", ["random", "constant", "zero"])
def test_extreme_transport(beta: float, direction: str) -> None:
    sequence = make_inputs(70, seed=6, gate=False)
    assert sequence.w is not None and sequence.beta is not None
    sequence.beta.fill_(beta)
    if direction == "constant":
        sequence.w[:] = sequence.w[0].clone()
    if direction == "zero":
        sequence.w.zero_()
    (out,) = run_in_steps([sequence], CUTS["random"], gate_inside_scale=True)
    expected = sequence.by_definition(gate_inside_scale=True)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-11)


def test_full_pages_never_change_and_equal_those_of_any_other_cut() -> None:
    sequence = make_inputs(3 * PAGE_SIZE + 5, seed=7)

    def pages_after(*steps: int) -> list[torch.Tensor]:
        cache = make_cache([len(sequence.q)], sequence, seed=0)
        done = 0
        for step in steps:
            paged_attention(
                *sequence.rows(done, done + step),
                cache.pages,
                cache.batch([step], [done + step]),
                sm_scale=1.0,
                gate_inside_scale=True,
                impl="reference",
            )
            done += step
        full = cache.block_table[0, :2].long()
        return [
            cache.pages.keys[full],
            cache.pages.values[full],
            cache.pages.gates[full],
            cache.pages.product[full],
        ]

    expected = pages_after(2 * PAGE_SIZE)
    for steps in (
        [2 * PAGE_SIZE, PAGE_SIZE + 5],
        [1] * (2 * PAGE_SIZE + 9),
        [13, 40, 11, 1, 1, 34],
    ):
        for got, want in zip(pages_after(*steps), expected, strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=1e-13)


def test_a_request_may_start_behind_pages_that_the_same_step_fills() -> None:
    context = make_inputs(2 * PAGE_SIZE, seed=8)
    tails = [make_inputs(n, seed=20 + n) for n in (1, 9, PAGE_SIZE, 40)]
    # Rows: the tails first, then the context that they continue, so that order cannot help.
    cache = make_cache(
        [2 * PAGE_SIZE + len(t.q) for t in tails] + [len(context.q)], context, seed=1
    )
    cache.block_table[:-1, :2] = cache.block_table[-1, :2].clone()
    parts = [*tails, context]
    columns = (torch.cat(column) for column in zip(*(vars(p).values() for p in parts), strict=True))
    steps = [len(p.q) for p in parts]
    seq_lens = [2 * PAGE_SIZE + n for n in steps[:-1]] + [steps[-1]]
    out = paged_attention(
        *columns,
        cache.pages,
        cache.batch(steps, seq_lens),
        sm_scale=HEAD_DIM**-0.5,
        gate_inside_scale=True,
        impl="reference",
    )
    for got, tail in zip(out.split(steps), tails, strict=False):
        whole = Inputs(
            *(
                torch.cat(pair)
                for pair in zip(vars(context).values(), vars(tail).values(), strict=True)
            )
        )
        expected = whole.by_definition(gate_inside_scale=True)[2 * PAGE_SIZE :]
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def unit(y: torch.Tensor) -> torch.Tensor:
    y = y.unflatten(-1, (-1, HEAD_DIM))
    return y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt()


@pytest.mark.parametrize("cut", CUTS)
def test_w_equals_torch_conv1d_and_the_norm_for_any_cut(cut: str) -> None:
    lengths, conv_size = [70, 1, 2, 3, 33, 64], 3
    inputs = make_inputs(1, seed=0)
    channels = 2 * HEAD_DIM
    generator = torch.Generator().manual_seed(9)
    weight = torch.randn(channels, conv_size, generator=generator, dtype=torch.float64)
    xs = [torch.randn(n, channels, generator=generator, dtype=torch.float64) for n in lengths]
    cache = make_cache(lengths, inputs, seed=2, conv_size=conv_size)
    rng, done = random.Random(1), [0] * len(xs)
    outputs: list[list[torch.Tensor]] = [[] for _ in xs]
    while done != lengths:
        steps = [min(CUTS[cut](rng), length - n) for n, length in zip(done, lengths, strict=True)]
        after = [n + step for n, step in zip(done, steps, strict=True)]
        x = torch.cat([x[n:m] for x, n, m in zip(xs, done, after, strict=True)])
        out = householder_vectors(
            x, weight, cache.pages, cache.batch(steps, after), impl="reference"
        )
        for collected, part in zip(outputs, out.split(steps), strict=True):
            collected.append(part)
        done = after
    for parts, x in zip(outputs, xs, strict=True):
        padded = F.pad(x.T[None], (conv_size - 1, 0))
        expected = unit(F.silu(F.conv1d(padded, weight[:, None], groups=channels))[0].T)
        torch.testing.assert_close(torch.cat(parts), expected, rtol=0, atol=1e-13)


def test_the_convolution_may_start_behind_a_page_that_the_same_step_fills() -> None:
    inputs, conv_size = make_inputs(1, seed=0), 3
    channels = 2 * HEAD_DIM
    generator = torch.Generator().manual_seed(10)
    weight = torch.randn(channels, conv_size, generator=generator, dtype=torch.float64)
    x = torch.randn(PAGE_SIZE + 4, channels, generator=generator, dtype=torch.float64)
    cache = make_cache([PAGE_SIZE + 4, PAGE_SIZE], inputs, seed=2, conv_size=conv_size)
    cache.block_table[0, 0] = cache.block_table[1, 0]
    batch = cache.batch([4, PAGE_SIZE], [PAGE_SIZE + 4, PAGE_SIZE])
    rows = torch.cat([x[PAGE_SIZE:], x[:PAGE_SIZE]])
    out = householder_vectors(rows, weight, cache.pages, batch, impl="reference")
    expected = F.silu(F.conv1d(F.pad(x.T[None], (2, 0)), weight[:, None], groups=channels))[0].T
    expected = unit(torch.cat([expected[PAGE_SIZE:], expected[:PAGE_SIZE]]))
    torch.testing.assert_close(out, expected)


def test_bf16_pages_err_less_than_keys_rewritten_at_every_step() -> None:
    sequence = make_inputs(
        12 * PAGE_SIZE, seed=11, dtype=torch.bfloat16, gate=False, num_heads=1, num_kv_heads=1
    )
    (out,) = run_in_steps([sequence], CUTS["one-by-one"], gate_inside_scale=True)
    expected = sequence.by_definition(gate_inside_scale=True)
    q, k, v, w, beta = (
        x[:, 0].double() for x in (sequence.q, sequence.k, sequence.v, sequence.w, sequence.beta)
    )
    rewritten = torch.empty_like(expected)
    for i in range(len(q)):
        k[:i] -= beta[i] * (k[:i] @ w[i])[:, None] * w[i]
        k[:i] = k[:i].bfloat16().double()
        weights = torch.softmax(HEAD_DIM**-0.5 * (k[: i + 1] @ q[i]), dim=0)
        rewritten[i, 0] = (weights @ v[: i + 1]).bfloat16().double()

    def error(got: torch.Tensor) -> torch.Tensor:
        return (got.double() - expected)[PAGE_SIZE:].square().mean().sqrt()

    assert error(out) < error(rewritten)


class TestRefusals:
    def call(self, **changes: object) -> None:
        inputs = make_inputs(4, seed=0)
        cache = make_cache([4], inputs, seed=0)
        arguments = {**vars(inputs), "pages": cache.pages, "batch": cache.batch([4], [4])}
        arguments |= dict(sm_scale=1.0, gate_inside_scale=True, impl="reference")
        paged_attention(**(arguments | changes))

    def test_the_unchanged_call_is_accepted(self) -> None:
        self.call()

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("q", torch.zeros(3, 4, HEAD_DIM, dtype=torch.float64), "k must have shape"),
            ("q", torch.zeros(4, 4, HEAD_DIM), "q must be torch.float64"),
            ("q", torch.zeros(4, 3, HEAD_DIM, dtype=torch.float64), "3 heads"),
            ("k", torch.zeros(4, 1, HEAD_DIM, dtype=torch.float64), "k must have shape"),
            ("w", None, "w and beta are given exactly when"),
            ("beta", None, "w and beta are given exactly when"),
            ("log_fgate", None, "log_fgate is given exactly when"),
            ("w", torch.zeros(4, 2, HEAD_DIM), "w must be torch.float64"),
            ("impl", "cuda", "impl must be one of"),
        ],
    )
    def test_contradictions_name_the_argument(self, name: str, value: object, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            self.call(**{name: value})

    @pytest.mark.parametrize(
        ("query_start_loc", "seq_lens"),
        [([0, 5], [4]), ([0, 4], [PAGE_SIZE + 1]), ([0, 4, 5], [4]), ([0, -1], [4])],
    )
    def test_impossible_batches(self, query_start_loc: list[int], seq_lens: list[int]) -> None:
        with pytest.raises(ValueError):
            PagedBatch.build(
                query_start_loc,
                seq_lens,
                torch.zeros(1, 1, dtype=torch.int32),
                page_size=PAGE_SIZE,
                chunk_size=CHUNK_SIZE,
            )

    def test_layout_sizes_must_divide(self) -> None:
        sizes = dict(page_size=32, chunk_size=8, num_heads=4, num_kv_heads=2, head_dim=16)
        flags = dict(dtype=torch.float32, has_transport=True, has_gate=False)
        for change in (dict(chunk_size=5), dict(num_kv_heads=3), dict(conv_size=4)):
            with pytest.raises(ValueError, match="not a multiple"):
                PageLayout(**(sizes | flags | change))
