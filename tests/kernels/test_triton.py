"""The Triton kernels against the definition.

Without a GPU they run in Triton's interpreter, in fp32 and fp16 (bf16 products are wrong in it) and
on small shapes; `test_triton_gpu.py` has the rest.
"""

import random

import pytest
import torch
import torch.nn.functional as F
from paged_sequences import KINDS, Cache, Cut, Inputs, Sizes, make_inputs, run_in_steps

from patheval.kernels import PagedBatch, batch, householder_vectors, paged_attention, triton_impl
from patheval.kernels.definition import attention_by_definition
from patheval.kernels.triton_impl import prefill

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEAD_DIM = 16
SIZES = Sizes(page_size=32, chunk_size=16, head_dim=HEAD_DIM)
TINY = Sizes(page_size=16, chunk_size=16, head_dim=HEAD_DIM)

CUTS: dict[str, Cut] = {
    "whole": lambda _: 10**6,
    "halves": lambda _: 37,
    "random": lambda rng: rng.choice([0, 1, 1, 2, 15, 16, 17, 31, 32, 33, 50]),
}


def inputs_of(kind: str, seq_len: int, **options: object) -> Inputs:
    defaults = dict(seed=seq_len, head_dim=HEAD_DIM, dtype=torch.float32, num_heads=2)
    return make_inputs(seq_len, **KINDS[kind], **(defaults | dict(num_kv_heads=1) | options))


def outputs_of(
    kind: str, sequences: list[Inputs], cut: Cut, sizes: Sizes = SIZES, **options: object
) -> list[torch.Tensor]:
    on_device = [sequence.to(DEVICE) for sequence in sequences]
    outputs = run_in_steps(
        on_device, cut, sizes, impl="triton", gate_inside_scale=kind != "fox", **options
    )
    return [out.cpu() for out in outputs]


def assert_equal_the_definition(
    kind: str, sequences: list[Inputs], cut: Cut, sizes: Sizes = SIZES, *, atol: float = 3e-6
) -> None:
    for out, sequence in zip(outputs_of(kind, sequences, cut, sizes), sequences, strict=True):
        expected = sequence.by_definition(gate_inside_scale=kind != "fox")
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_definition_for_any_cut_into_steps(kind: str, cut: str) -> None:
    assert_equal_the_definition(kind, [inputs_of(kind, n) for n in (70, 1, 33)], CUTS[cut])


@pytest.mark.parametrize("kind", KINDS)
def test_decode_from_the_first_token_on(kind: str) -> None:
    assert_equal_the_definition(kind, [inputs_of(kind, n) for n in (40, 3)], lambda _: 1)


@pytest.mark.parametrize("kind", KINDS)
def test_decode_behind_several_groups_of_pages(kind: str) -> None:
    sequences = [inputs_of(kind, n, num_heads=1) for n in (300, 258)]
    assert_equal_the_definition(kind, sequences, lambda rng: rng.choice([150, 90, 7]), TINY)
    steps = iter([285, 285] + [1] * 100)
    assert_equal_the_definition(kind, sequences, lambda _: next(steps), TINY)


@pytest.mark.parametrize("memory", [1 << 30, 1])
def test_long_prefills_read_gathered_groups(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "FAR_QUERIES", 100)
    # With one byte, each kv head has a turn of its own.
    monkeypatch.setattr(prefill, "FAR_BYTES", memory)
    sequences = [inputs_of("path", n, num_kv_heads=2) for n in (290, 140)]
    assert_equal_the_definition("path", sequences, lambda rng: rng.choice([130, 20]), TINY)
    assert PagedBatch.build(
        [0, 290], [290], torch.zeros(1, 19, dtype=torch.int32), page_size=16, chunk_size=16
    ).far_groups


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 4), (4, 1), (6, 2)])
def test_every_group_size_reads_its_own_kv_head(num_heads: int, num_kv_heads: int) -> None:
    sequence = inputs_of("path-fox", 45, num_heads=num_heads, num_kv_heads=num_kv_heads)
    assert_equal_the_definition("path-fox", [sequence], CUTS["random"])


@pytest.mark.parametrize("cut", ["random", "single tokens"])
@pytest.mark.parametrize("transport", ["random", "constant w, beta 2"])
def test_fp16_errs_less_than_the_formula_in_fp16(cut: str, transport: str) -> None:
    sequence = inputs_of("path-fox", 90, dtype=torch.float16)
    assert sequence.w is not None and sequence.beta is not None
    if transport != "random":
        sequence.w[:] = sequence.w[0].clone()
        sequence.beta.fill_(2.0)
    (out,) = outputs_of("path-fox", [sequence], {**CUTS, "single tokens": lambda _: 1}[cut])
    expected = sequence.by_definition(gate_inside_scale=True)
    halves = Inputs(*(x.half() for x in vars(sequence).values()))
    plain = attention_by_definition(
        *vars(halves).values(), sm_scale=HEAD_DIM**-0.5, gate_inside_scale=True
    )
    assert (out - expected).square().mean() < (plain - expected).square().mean()


@pytest.mark.parametrize("log_fgate", [0.0, -1e-6, -40.0])
def test_extreme_gates(log_fgate: float) -> None:
    sequence = inputs_of("path-fox", 70)
    assert sequence.log_fgate is not None
    sequence.log_fgate.fill_(log_fgate)
    assert_equal_the_definition("path-fox", [sequence], CUTS["random"])


@pytest.mark.parametrize("beta", [0.0, 1e-7, 2.0])
@pytest.mark.parametrize("direction", ["random", "constant", "zero"])
def test_extreme_transport(beta: float, direction: str) -> None:
    sequence = inputs_of("path", 50)
    assert sequence.w is not None and sequence.beta is not None
    sequence.beta.fill_(beta)
    if direction == "constant":
        sequence.w[:] = sequence.w[0].clone()
    if direction == "zero":
        sequence.w.zero_()
    assert_equal_the_definition("path", [sequence], CUTS["random"])


@pytest.mark.parametrize("kind", ["path-fox", "fox"])
@pytest.mark.parametrize("cut", ["whole", "random"])
def test_skipped_pages_change_nothing_that_fp32_can_show(kind: str, cut: str) -> None:
    sequence = inputs_of(kind, 200)
    assert sequence.log_fgate is not None
    sequence.log_fgate.mul_(8)
    (skipped,) = outputs_of(kind, [sequence], CUTS[cut], TINY)
    (read,) = outputs_of(kind, [sequence], CUTS[cut], TINY, skip_pages=False)
    torch.testing.assert_close(skipped, read, rtol=0, atol=3e-7)


def test_pages_are_skipped_and_counted() -> None:
    sequence = inputs_of("fox", 160)
    assert sequence.log_fgate is not None
    sequence.log_fgate.fill_(-2.0)
    sequence = sequence.to(DEVICE)
    cache = Cache([160], sequence, TINY, seed=0)
    for query_len, seq_len in ((150, 150), (1, 151)):
        counts = []
        for skip in (True, False):
            visits = torch.zeros(2, dtype=torch.int64, device=DEVICE)
            triton_impl.paged_attention(
                *sequence.rows(seq_len - query_len, seq_len),
                cache.pages,
                cache.batch([query_len], [seq_len]),
                torch.empty_like(sequence.q[:query_len]),
                sm_scale=1.0,
                gate_inside_scale=False,
                skip_pages=skip,
                visits=visits,
            )
            counts.append(visits.tolist())
        (done, possible), (all_done, all_possible) = counts
        assert possible == all_possible == all_done
        assert 0 < done < possible / 2


def test_pages_equal_those_of_the_reference() -> None:
    sequence = inputs_of("path-fox", 280, num_heads=2)
    found = {}
    for impl, device, steps in (
        ("reference", "cpu", [280]),
        ("triton", DEVICE, [130, 140] + [1] * 10),
    ):
        rows = sequence.to(device)
        cache = Cache([280], rows, TINY, seed=3)
        done = 0
        for step in steps:
            paged_attention(
                *rows.rows(done, done + step),
                cache.pages,
                cache.batch([step], [done + step]),
                sm_scale=1.0,
                gate_inside_scale=True,
                impl=impl,  # type: ignore[arg-type]
            )
            done += step
        full, last = cache.block_table[0, : 280 // 16].long(), cache.block_table[0, 280 // 16]
        found[impl] = [
            region[last, :, : 280 % 16].cpu() if name.startswith("pending") else region[full].cpu()
            for name, region in cache.pages._asdict().items()
            if region is not None
        ]
    assert len(found["triton"]) == 10
    for got, want in zip(found["triton"], found["reference"], strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_new", [64, 20, 1])
def test_a_request_may_start_behind_pages_that_the_same_step_fills(kind: str, num_new: int) -> None:
    context = inputs_of(kind, 64)
    tails = [inputs_of(kind, n, seed=20 + n) for n in (1, 9, 40)]
    cache = Cache([64 + len(tail.q) for tail in tails] + [64], context.to(DEVICE), SIZES, seed=1)
    cache.block_table[:-1, :2] = cache.block_table[-1, :2].clone()

    def attend(steps: list[int], seq_lens: list[int], parts: list[Inputs]) -> torch.Tensor:
        return paged_attention(
            *vars(joined(parts).to(DEVICE)).values(),
            cache.pages,
            cache.batch(steps, seq_lens),
            sm_scale=HEAD_DIM**-0.5,
            gate_inside_scale=kind != "fox",
            impl="triton",
        ).cpu()

    if num_new < 64:
        before = Inputs(*context.rows(0, 64 - num_new))
        attend([0, 0, 0, 64 - num_new], [0, 0, 0, 64 - num_new], [before])
    steps = [len(tail.q) for tail in tails] + [num_new]
    lengths = [64 + n for n in steps[:-1]] + [64]
    out = attend(steps, lengths, [*tails, Inputs(*context.rows(64 - num_new, 64))])
    for got, tail in zip(out.split(steps), tails, strict=False):
        expected = joined([context, tail]).by_definition(gate_inside_scale=kind != "fox")[64:]
        torch.testing.assert_close(got.double(), expected, rtol=0, atol=3e-6)


def joined(parts: list[Inputs]) -> Inputs:
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    return Inputs(*(None if x[0] is None else torch.cat(x) for x in columns))


@pytest.mark.parametrize("cut", CUTS)
def test_w_equals_torch_conv1d_and_the_norm_for_any_cut(cut: str) -> None:
    lengths, conv_size, channels = [70, 1, 2, 3, 33, 64], 3, 2 * HEAD_DIM
    inputs = inputs_of("path", 1, num_kv_heads=2).to(DEVICE)
    generator = torch.Generator().manual_seed(9)
    weight = torch.randn(channels, conv_size, generator=generator)
    xs = [torch.randn(n, channels, generator=generator) for n in lengths]
    cache = Cache(lengths, inputs, SIZES, seed=2, conv_size=conv_size)
    rng, done = random.Random(1), [0] * len(xs)
    outputs: list[list[torch.Tensor]] = [[] for _ in xs]
    while done != lengths:
        steps = [min(CUTS[cut](rng), length - n) for n, length in zip(done, lengths, strict=True)]
        after = [n + step for n, step in zip(done, steps, strict=True)]
        x = torch.cat([x[n:m] for x, n, m in zip(xs, done, after, strict=True)]).to(DEVICE)
        out = householder_vectors(
            x, weight.to(DEVICE), cache.pages, cache.batch(steps, after), impl="triton"
        )
        for collected, part in zip(outputs, out.cpu().split(steps), strict=True):
            collected.append(part)
        done = after
    for parts, x in zip(outputs, xs, strict=True):
        padded = F.pad(x.T[None], (conv_size - 1, 0))
        y = F.silu(F.conv1d(padded, weight[:, None], groups=channels))[0].T.unflatten(1, (2, -1))
        expected = y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        torch.testing.assert_close(torch.cat(parts), expected, rtol=0, atol=1e-6)


def test_the_convolution_may_start_behind_a_page_that_the_same_step_fills() -> None:
    inputs = inputs_of("path", 1).to(DEVICE)
    generator = torch.Generator().manual_seed(10)
    weight = torch.randn(HEAD_DIM, 3, generator=generator).to(DEVICE)
    x = torch.randn(36, HEAD_DIM, generator=generator).to(DEVICE)
    results = []
    for order in ([(4, 36), (32, 32)], [(32, 32), (4, 36)]):
        cache = Cache([36, 36], inputs, SIZES, seed=2, conv_size=3)
        cache.block_table[1, 0] = cache.block_table[0, 0]
        rows = torch.cat([x[end - n : end] for n, end in order])
        step = cache.batch([n for n, _ in order], [end for _, end in order])
        out = householder_vectors(rows, weight, cache.pages, step, impl="triton")
        parts = dict(zip([n for n, _ in order], out.split([n for n, _ in order]), strict=True))
        results.append(torch.cat([parts[32], parts[4]]))
    cache = Cache([36], inputs, SIZES, seed=2, conv_size=3)
    whole = householder_vectors(x, weight, cache.pages, cache.batch([36], [36]), impl="triton")
    for result in results:
        torch.testing.assert_close(result, whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("sizes", "dtype", "message"),
    [
        (Sizes(32, 16, 24), torch.float32, "head_dim"),
        (Sizes(48, 16, 16), torch.float32, "page_size"),
        (Sizes(32, 8, 16), torch.float32, "chunk_size"),
        (Sizes(32, 16, 16), torch.float64, "fp32, fp16 and bf16"),
    ],
)
def test_unsupported_shapes_are_refused(sizes: Sizes, dtype: torch.dtype, message: str) -> None:
    sequence = make_inputs(3, seed=0, head_dim=sizes.head_dim, dtype=dtype)
    with pytest.raises(ValueError, match=message):
        run_in_steps([sequence], CUTS["whole"], sizes, impl="triton", gate_inside_scale=True)
