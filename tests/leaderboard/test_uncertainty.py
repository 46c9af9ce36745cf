"""Standard errors, intervals and tests against scipy and statsmodels, and by simulation."""

from dataclasses import astuple

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import confint_proportions_2indep, proportion_confint

from patheval.leaderboard import uncertainty

DRAWS = 1000


@pytest.mark.parametrize("right", [0, 1, 31, 48, 95, 96])
def test_proportions_match_statsmodels_and_scipy(right):
    values = [1.0] * right + [0.0] * (96 - right)
    found = uncertainty.estimate(values)
    low, high = proportion_confint(right, 96, method="wilson")
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-12)
    assert found.stderr == pytest.approx(stats.sem(values))
    reported = uncertainty.from_reported(right / 96, None, 96, is_share=True)
    assert astuple(reported) == pytest.approx(astuple(found))


def test_means_match_scipy():
    values = np.random.default_rng(1).beta(2, 3, 57)
    found = uncertainty.estimate(values)
    interval = stats.t.interval(0.95, 56, values.mean(), stats.sem(values))
    assert (found.low, found.high) == pytest.approx(interval)


def test_a_single_sample_has_no_uncertainty():
    assert uncertainty.estimate([0.5]) == uncertainty.Estimate(0.5, None, None, None, 1)


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (4, 0), (12, 5), (60, 41), (300, 350)])
def test_mcnemar_matches_statsmodels(gained, lost):
    table = [[10, gained], [lost, 20]]
    expected = mcnemar(table, exact=True).pvalue if gained + lost else 1.0
    assert uncertainty.mcnemar_p_value(gained, lost) == pytest.approx(expected)


def test_paired_difference_of_shares_equals_scipy_and_statsmodels():
    rng = np.random.default_rng(3)
    base = (rng.random(200) < 0.4).astype(float)
    model = np.where(rng.random(200) < 0.7, base, (rng.random(200) < 0.7).astype(float))
    found = uncertainty.paired_difference(model, base)
    assert found.value == pytest.approx((model - base).mean())
    assert found.stderr == pytest.approx(stats.sem(model - base))
    table = np.histogram2d(model, base, bins=2)[0]
    assert found.p_value == pytest.approx(mcnemar(table, exact=True).pvalue)
    assert found.method == "mcnemar"


def test_paired_bootstrap_agrees_with_scipy_bootstrap_and_t_test():
    rng = np.random.default_rng(4)
    base = rng.beta(2, 2, 150)
    model = np.clip(base + rng.normal(0.02, 0.1, 150), 0, 1)
    found = uncertainty.paired_difference(model, base)
    reference = stats.bootstrap(
        (model - base,), np.mean, n_resamples=20000, method="percentile", rng=rng
    )
    assert found.low == pytest.approx(reference.confidence_interval.low, abs=2e-3)
    assert found.high == pytest.approx(reference.confidence_interval.high, abs=2e-3)
    assert found.stderr == pytest.approx(reference.standard_error, rel=0.05)
    assert found.p_value == pytest.approx(stats.ttest_rel(model, base).pvalue, abs=0.015)
    assert found.method == "bootstrap"


def test_equal_scores_are_noise_and_few_prompts_are_too():
    same = uncertainty.paired_difference([0.2, 0.4, 0.9], [0.2, 0.4, 0.9])
    assert (same.value, same.stderr, same.is_noise) == (0, 0, True)
    assert uncertainty.paired_difference([1, 1, 1, 1], [0, 0, 0, 0]).is_noise
    assert not uncertainty.paired_difference([1] * 6, [0] * 6).is_noise


def coverage(intervals, truth):
    return np.mean([low <= truth <= high for low, high in intervals])


@pytest.mark.parametrize("rate", [0.1, 0.35, 0.7, 0.93])
def test_intervals_of_shares_cover(rate):
    draws = np.random.default_rng(5).random((DRAWS, 200)) < rate
    found = [uncertainty.estimate(draw.astype(float)) for draw in draws]
    assert 0.93 <= coverage([(f.low, f.high) for f in found], rate) <= 0.97


def test_intervals_of_fractional_scores_cover():
    draws = np.random.default_rng(6).binomial(4, 0.6, (DRAWS, 100)) / 4
    found = [uncertainty.estimate(draw) for draw in draws]
    assert 0.93 <= coverage([(f.low, f.high) for f in found], 0.6) <= 0.97


def test_intervals_of_an_average_over_tasks_cover():
    rates = np.array([0.02, 0.1, 0.3, 0.5, 0.8, 0.95, 0.99])
    draws = np.random.default_rng(7).random((DRAWS, len(rates), 100)) < rates[:, None]
    found = [
        uncertainty.weighted_mean([uncertainty.estimate(task.astype(float)) for task in draw])
        for draw in draws
    ]
    assert 0.93 <= coverage([(f.low, f.high) for f in found], rates.mean()) <= 0.97
    stderrs = [f.stderr for f in found]
    assert np.mean(stderrs) == pytest.approx(np.std([f.value for f in found]), rel=0.1)


def test_intervals_of_weighted_averages_cover():
    rates = np.array([0.9, 0.6, 0.3, 0.1])
    weights = uncertainty.increasing_weights(4)
    draws = np.random.default_rng(8).random((DRAWS, 4, 120)) < rates[:, None]
    found = [
        uncertainty.weighted_mean(
            [uncertainty.estimate(task.astype(float)) for task in draw], weights
        )
        for draw in draws
    ]
    truth = np.average(rates, weights=weights)
    assert 0.93 <= coverage([(f.low, f.high) for f in found], truth) <= 0.97


def paired_draws(seed, rate, gain, n, correlation=0.6):
    rng = np.random.default_rng(seed)
    for _ in range(DRAWS):
        shared = rng.random(n)
        base = np.where(rng.random(n) < correlation, shared, rng.random(n)) < rate
        model = np.where(rng.random(n) < correlation, shared, rng.random(n)) < rate + gain
        yield model.astype(float), base.astype(float)


@pytest.mark.parametrize(("rate", "gain"), [(0.3, 0.0), (0.3, 0.1), (0.6, 0.25)])
def test_intervals_of_paired_differences_cover(rate, gain):
    pairs = paired_draws(9, rate, gain, 200)
    found = [uncertainty.paired_difference(model, base) for model, base in pairs]
    assert 0.93 <= coverage([(f.low, f.high) for f in found], gain) <= 0.97
    assert np.mean([f.stderr for f in found]) == pytest.approx(
        np.std([f.value for f in found]), rel=0.1
    )


def test_bootstrap_intervals_of_paired_differences_cover_and_reject_five_percent():
    rng = np.random.default_rng(10)
    found = []
    for _ in range(DRAWS):
        base = rng.binomial(4, 0.5, 60) / 4
        model = np.clip(base + rng.choice([-0.25, 0, 0, 0.25], 60), -1, 2)
        found.append(uncertainty.paired_difference(model, base))
    assert 0.93 <= coverage([(f.low, f.high) for f in found], 0.0) <= 0.97
    assert 0.03 <= np.mean([not f.is_noise for f in found]) <= 0.07


def test_averages_of_differences_reject_five_percent():
    parts = [paired_draws(seed, 0.4, 0.0, 100) for seed in (11, 12, 13)]
    found = [
        uncertainty.weighted_difference([uncertainty.paired_difference(*pair) for pair in pairs])
        for pairs in zip(*parts, strict=True)
    ]
    assert 0.03 <= np.mean([not f.is_noise for f in found]) <= 0.07
    assert {f.method for f in found} == {"paired"}


def test_unpaired_difference_is_a_z_test():
    a, b = (
        uncertainty.from_reported(value, stderr, 96, is_share=False)
        for value, stderr in ((0.5, 0.03), (0.4, 0.04))
    )
    found = uncertainty.unpaired_difference(a, b)
    assert found.stderr == pytest.approx(0.05)
    assert found.p_value == pytest.approx(2 * stats.norm.sf(2))
    assert uncertainty.unpaired_difference(a, uncertainty.Estimate(0.4, None, 0, 1, 9)) is None


@pytest.mark.parametrize("counts", [(20, 20, 86, 96), (50, 96, 31, 96), (0, 20, 3, 96)])
def test_unpaired_difference_of_shares_has_newcombes_interval(counts):
    right, n, right_base, n_base = counts
    parts = [
        uncertainty.from_reported(k / m, None, m, is_share=True)
        for k, m in ((right, n), (right_base, n_base))
    ]
    found = uncertainty.unpaired_difference(*parts)
    expected = confint_proportions_2indep(right, n, right_base, n_base, method="newcomb")
    assert (found.low, found.high) == pytest.approx(expected, abs=1e-9)
    assert found.is_noise == (expected[0] <= 0 <= expected[1])


def test_an_unpaired_comparison_of_equal_models_calls_few_differences_real():
    rng = np.random.default_rng(9)
    for share in (0.02, 0.5, 0.95):
        found = [
            uncertainty.unpaired_difference(
                *(
                    uncertainty.from_reported(k / m, None, m, is_share=True)
                    for k, m in zip(rng.binomial((40, 96), share), (40, 96), strict=True)
                )
            )
            for _ in range(DRAWS)
        ]
        assert np.mean([not own.is_noise for own in found]) <= 0.07


# Gemini 1.5 Pro in RULER's own table: 95.8 on average, 95.5 (inc), 96.1 (dec).
RULER_ROW = [96.7, 95.8, 96.0, 95.9, 95.9, 94.4]


def test_weighted_averages_are_those_of_rulers_table():
    parts = [uncertainty.Estimate(value, 1.0, 0.0, 100.0, 500) for value in RULER_ROW]
    weights = uncertainty.increasing_weights(6)
    values = [uncertainty.weighted_mean(parts, own).value for own in (None, weights, weights[::-1])]
    assert [round(value, 1) for value in values] == [95.8, 95.5, 96.1]


@pytest.mark.parametrize(
    ("model", "share", "expected"),
    [
        # The paper's Table 3 at 4k, 8k and 16k, by NoLiMa's rule.
        ([35.7, 1.3, 0.0], 0.85, 4096),
        ([41.6, 29.5, 4.9], 0.85, 4096),
        ([44.6, 34.8, 18.7], 0.85, 4096),
        ([44.6, 34.8, 18.7], 0.75, 8192),
        ([42.3, 34.0, 22.6], 0.75, 8192),
        ([41.6, 29.5, 4.9], 0.75, 4096),
    ],
)
def test_effective_length_of_the_papers_models(model, share, expected):
    scores = list(zip([4096, 8192, 16384], model, strict=True))
    assert uncertainty.effective_length(scores[::-1], share * model[0]) == expected


def test_effective_length_stops_at_the_first_failure():
    assert uncertainty.effective_length([(1, 0.9), (2, 0.5), (4, 0.9)], 0.8) == 1
    assert uncertainty.effective_length([(1, 0.1), (2, 0.9)], 0.8) is None
