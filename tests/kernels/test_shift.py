"""The token before each token, whatever the cut into steps and the order of pages."""

import itertools
import random

import pytest
import torch

from patheval.kernels import PagedBatch, PageLayout, Pages, previous_tokens

PAGE_SIZE, WIDTH = 32, 64


def make_pages(num_pages: int) -> Pages:
    layout = PageLayout(
        page_size=PAGE_SIZE,
        chunk_size=8,
        num_heads=2,
        num_kv_heads=2,
        head_dim=16,
        dtype=torch.float32,
        has_transport=False,
        has_gate=True,
        has_token_shift=True,
    )
    pages = layout.views(layout.empty_pool(num_pages).fill_(-1))
    assert pages.shift_tail is not None and pages.shift_tail.isnan().all()
    return pages


def batch_of(steps: list[int], seq_lens: list[int], table: torch.Tensor) -> PagedBatch:
    starts = list(itertools.accumulate(steps, initial=0))
    return PagedBatch.build(starts, seq_lens, table, page_size=PAGE_SIZE, chunk_size=8)


def expected(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.zeros(1, WIDTH), x[:-1]])


@pytest.mark.parametrize("seed", range(5))
def test_any_cut_into_steps_gives_the_token_before(seed: int) -> None:
    rng = random.Random(seed)
    lengths = [70, 37, 1, 64, 100, 33]
    sequences = [torch.randn(n, WIDTH) for n in lengths]
    page_ids = rng.sample(range(1, 40), 6 * 4)
    table = torch.tensor(page_ids, dtype=torch.int32).view(6, 4)
    pages = make_pages(40)
    done = [0] * 6
    found: list[list[torch.Tensor]] = [[] for _ in sequences]
    while done != lengths:
        steps = [
            min(rng.choice([0, 1, 1, 2, 31, 32, 33, 50]), n - d)
            for n, d in zip(lengths, done, strict=True)
        ]
        after = [d + step for d, step in zip(done, steps, strict=True)]
        x = torch.cat([s[d:a] for s, d, a in zip(sequences, done, after, strict=True)])
        out = previous_tokens(x, pages, batch_of(steps, after, table))
        for collected, part in zip(found, out.split(steps), strict=True):
            collected.append(part)
        done = after
    for parts, sequence in zip(found, sequences, strict=True):
        assert torch.equal(torch.cat(parts), expected(sequence))


def test_a_request_may_start_behind_a_page_that_another_fills_in_the_same_step() -> None:
    x = torch.randn(40, WIDTH)
    pages = make_pages(8)
    table = torch.tensor([[3, 1], [3, 5]], dtype=torch.int32)
    # The second shares the first's page 3 and brings the tokens behind it alone.
    previous_tokens(x[:20], pages, batch_of([20], [20], table[:1]))
    rows = torch.cat([x[20:36], x[32:40]])
    out = previous_tokens(rows, pages, batch_of([16, 8], [36, 40], table))
    assert torch.equal(out, torch.cat([x[19:35], x[31:39]]))


def test_surplus_rows_of_a_padded_step_change_nothing() -> None:
    x = torch.randn(2, WIDTH)
    pages = make_pages(8)
    assert pages.shift_tail is not None
    batch = PagedBatch.of_single_tokens(
        4,
        torch.tensor([0, 1, 2, 2, 2], dtype=torch.int32),
        torch.tensor([1, 33, 0, 0], dtype=torch.int32),
        torch.tensor([[4, 0], [6, 7], [0, 0], [0, 0]], dtype=torch.int32),
        page_size=PAGE_SIZE,
        chunk_size=8,
    )
    before = torch.randn(WIDTH)
    pages.shift_tail[6] = before
    out = previous_tokens(torch.cat([x, torch.randn(2, WIDTH)]), pages, batch)
    assert torch.equal(out[:2], torch.stack([torch.zeros(WIDTH), before]))
    assert torch.equal(pages.shift_tail[[4, 6, 7]], torch.stack([x[0], before, x[1]]))
    assert pages.shift_tail[[0, 1, 2, 3, 5]].isnan().all()


def test_what_does_not_fit_the_pages_is_refused() -> None:
    batch = batch_of([2], [2], torch.tensor([[1]], dtype=torch.int32))
    for wrong in (torch.zeros(3, WIDTH), torch.zeros(2, 8), torch.zeros(2, WIDTH).double()):
        with pytest.raises(ValueError, match=r"the pages take \[2, 64\]"):
            previous_tokens(wrong, make_pages(2), batch)
