"""Standard errors, intervals and paired comparisons.

Every function is plain arithmetic on per-sample values; the tests check each against scipy or
statsmodels, and its intervals by their coverage on simulated data.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats  # type: ignore[import-untyped]

Z95 = 1.959963984540054
"""Two-sided 95 % quantile of the normal distribution."""

NOISE_P = 0.05
"""A difference with at least this p-value is called noise."""

_BOOTSTRAP_DRAWS = 4000


@dataclass(frozen=True)
class Estimate:
    """A score with its uncertainty.

    Attributes:
        value: The estimate.
        stderr: Its standard error; None where nothing tells it.
        low: Lower end of the 95 % interval; None without a standard error.
        high: Upper end.
        n: Samples behind it.
    """

    value: float
    stderr: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class Difference:
    """How far a score is from the baseline's.

    Attributes:
        value: Score minus baseline.
        stderr: Its standard error.
        low: Lower end of the 95 % interval.
        high: Upper end.
        p_value: Chance of a difference at least as large between equal models.
        method: How it was tested; "unpaired" where the prompts' own scores are not at hand.
        n: Prompts (or pairs of prompts) behind it.
    """

    value: float
    stderr: float
    low: float
    high: float
    p_value: float
    method: Literal["mcnemar", "bootstrap", "paired", "unpaired"]
    n: int

    @property
    def is_noise(self) -> bool:
        """Whether equal models would differ as much in 5 % of such comparisons."""
        return self.p_value >= NOISE_P


def is_binary(values: NDArray[np.float64]) -> bool:
    """Whether all values are 0 or 1."""
    return bool(np.isin(values, (0.0, 1.0)).all())


def wilson_interval(successes: float, n: int) -> tuple[float, float]:
    """Returns the 95 % score interval of a proportion (Wilson, 1927).

    Unlike value +- 1.96 standard errors it stays in [0, 1] and has width at 0 and at 1.

    Args:
        successes: Number of ones.
        n: Number of samples, at least 1.
    """
    share = successes / n
    spread = Z95**2 / n
    centre = (share + spread / 2) / (1 + spread)
    half = math.sqrt(share * (1 - share) * spread + spread**2 / 4) / (1 + spread)
    return (centre - half if successes else 0.0), (centre + half if successes < n else 1.0)


def estimate(values: ArrayLike) -> Estimate:
    """Returns the mean of per-sample values.

    The standard error is the sample's standard deviation over sqrt(n), as in lm-eval. The interval
    is Wilson's for zeros and ones, else Student's.

    Args:
        values: [n], at least one finite number.
    """
    array = np.asarray(values, dtype=np.float64)
    n = len(array)
    mean = float(array.mean())
    if n < 2:
        return Estimate(mean, None, None, None, n)
    stderr = float(array.std(ddof=1)) / math.sqrt(n)
    if is_binary(array):
        low, high = wilson_interval(float(array.sum()), n)
    else:
        half = float(stats.t.ppf(0.975, n - 1)) * stderr
        low, high = mean - half, mean + half
    return Estimate(mean, stderr, low, high, n)


def from_reported(value: float, stderr: float | None, n: int, *, is_share: bool) -> Estimate:
    """Returns an estimate from a reported mean alone.

    Args:
        value: The mean.
        stderr: The reported standard error, or None.
        n: Number of samples; 0 if unknown.
        is_share: Whether the metric is a share of zeros and ones, which then tells the standard
            error and the interval.
    """
    if is_share and n > 1 and 0 <= value <= 1:
        if stderr is None:
            stderr = math.sqrt(value * (1 - value) / (n - 1))
        low, high = wilson_interval(value * n, n)
        return Estimate(value, stderr, low, high, n)
    if stderr is None:
        return Estimate(value, None, None, None, n)
    return Estimate(value, stderr, value - Z95 * stderr, value + Z95 * stderr, n)


def weighted_mean(parts: Sequence[Estimate], weights: Sequence[float] | None = None) -> Estimate:
    """Returns the weighted mean of independent estimates.

    Its standard error is sqrt(sum (w s)^2) / sum w. Its interval joins the parts' own intervals
    (MOVER: Zou and Donner, 2008), which keeps it honest where parts are near 0 or 1.

    Args:
        parts: At least one estimate.
        weights: One positive weight for each; equal weights by default.
    """
    shares = np.asarray(weights if weights is not None else [1.0] * len(parts), dtype=np.float64)
    shares = shares / shares.sum()
    value = float(sum(w * part.value for w, part in zip(shares, parts, strict=True)))
    n = sum(part.n for part in parts)
    if any(part.stderr is None or part.low is None or part.high is None for part in parts):
        return Estimate(value, None, None, None, n)

    def join(distances: Sequence[float]) -> float:
        return math.sqrt(sum((w * d) ** 2 for w, d in zip(shares, distances, strict=True)))

    return Estimate(
        value,
        join([part.stderr or 0.0 for part in parts]),
        value - join([part.value - (part.low or 0.0) for part in parts]),
        value + join([(part.high or 0.0) - part.value for part in parts]),
        n,
    )


def mcnemar_p_value(gained: int, lost: int) -> float:
    """Returns McNemar's exact two-sided p-value.

    Args:
        gained: Prompts that only the model answers.
        lost: Prompts that only the baseline answers.
    """
    # Twice the smaller tail of a fair coin's throws.
    return min(1.0, 2 * float(special.bdtr(min(gained, lost), gained + lost, 0.5)))


def paired_difference(model: ArrayLike, baseline: ArrayLike) -> Difference:
    """Compares two models on the same prompts.

    The standard error is that of the mean of the prompts' differences. Zeros and ones are tested
    by McNemar's exact test, other scores by a paired bootstrap with a fixed seed.

    Args:
        model: [n], at least two per-prompt values.
        baseline: [n], the baseline's values on the same prompts in the same order.
    """
    ours, theirs = (np.asarray(x, dtype=np.float64) for x in (model, baseline))
    delta = ours - theirs
    n = len(delta)
    mean = float(delta.mean())
    stderr = float(delta.std(ddof=1)) / math.sqrt(n)
    if is_binary(ours) and is_binary(theirs):
        gained, lost = int((delta > 0).sum()), int((delta < 0).sum())
        low, high = _score_interval_of_pairs(gained, lost, n)
        return Difference(mean, stderr, low, high, mcnemar_p_value(gained, lost), "mcnemar", n)
    distinct, counts = np.unique(delta, return_counts=True)
    if len(distinct) == 1:
        p_value = 1.0 if distinct[0] == 0 else 0.0
        return Difference(mean, stderr, mean, mean, p_value, "bootstrap", n)
    means = _bootstrap_means(distinct, counts, n)
    # The plain bootstrap is too narrow for few samples (Hesterberg, 2015, section 5.3).
    expansion = math.sqrt(n / (n - 1)) * float(stats.t.ppf(0.975, n - 1)) / Z95
    means = mean + (means - mean) * expansion
    low, high = (float(x) for x in np.quantile(means, (0.025, 0.975)))
    # Moved to a mean of zero the draws are what equal models give.
    extreme = int((np.abs(means - mean) >= abs(mean) - 1e-12).sum())
    p_value = (extreme + 1) / (len(means) + 1)
    return Difference(mean, stderr, low, high, min(1.0, p_value), "bootstrap", n)


def unpaired_difference(model: Estimate, baseline: Estimate) -> Difference | None:
    """Compares two estimates as if from unrelated prompts; None without standard errors.

    The interval joins the estimates' own intervals (MOVER; for proportions Newcombe, 1998, method
    10), and the p-value is that of the normal distribution with the interval's width towards zero:
    20 of 20 are not certain to be better than 86 of 96, though their standard error is 0.
    """
    if model.stderr is None or baseline.stderr is None:
        return None
    value = model.value - baseline.value
    stderr = math.hypot(model.stderr, baseline.stderr)
    n = min(model.n, baseline.n)
    if None in (model.low, model.high, baseline.low, baseline.high):
        return _normal_difference(value, stderr, "unpaired", n)
    ours_below, ours_above = _distances(model)
    theirs_below, theirs_above = _distances(baseline)
    below, above = math.hypot(ours_below, theirs_above), math.hypot(ours_above, theirs_below)
    to_zero = below if value > 0 else above
    p_value = 1.0 if value == 0 else 0.0
    if value and to_zero:
        p_value = math.erfc(abs(value) / (to_zero / Z95) / math.sqrt(2))
    return Difference(value, stderr, value - below, value + above, p_value, "unpaired", n)


def _distances(own: Estimate) -> tuple[float, float]:
    return own.value - (own.low or 0.0), (own.high or 0.0) - own.value


def weighted_difference(
    parts: Sequence[Difference], weights: Sequence[float] | None = None
) -> Difference:
    """Returns the weighted mean of independent differences, tested by the normal distribution.

    Args:
        parts: At least one difference.
        weights: One positive weight for each; equal weights by default.
    """
    if len(parts) == 1:
        return parts[0]
    shares = np.asarray(weights if weights is not None else [1.0] * len(parts), dtype=np.float64)
    shares = shares / shares.sum()
    value = float(sum(w * part.value for w, part in zip(shares, parts, strict=True)))
    stderr = math.sqrt(sum((w * part.stderr) ** 2 for w, part in zip(shares, parts, strict=True)))
    paired = all(part.method != "unpaired" for part in parts)
    n = sum(part.n for part in parts)
    return _normal_difference(value, stderr, "paired" if paired else "unpaired", n)


def increasing_weights(num_lengths: int) -> list[float]:
    """Weights 1, 2, ... of RULER's wAvg(inc), shortest length first; reversed: wAvg(dec)."""
    return [float(i + 1) for i in range(num_lengths)]


def effective_length(scores: Sequence[tuple[int, float]], threshold: float) -> int | None:
    """Returns the largest length up to which no score is below a threshold; None if all are.

    Args:
        scores: Length in tokens and score, in any order.
        threshold: Lowest accepted score.
    """
    reached = None
    for length, score in sorted(scores):
        if score < threshold:
            break
        reached = length
    return reached


def _bootstrap_means(
    distinct: NDArray[np.float64], counts: NDArray[np.int64], n: int
) -> NDArray[np.float64]:
    rng = np.random.default_rng(20250522)
    return rng.multinomial(n, counts / n, size=_BOOTSTRAP_DRAWS) @ distinct / n


def _score_interval_of_pairs(gained: int, lost: int, n: int) -> tuple[float, float]:
    """95 % interval of a difference of paired proportions (Agresti and Min, 2005)."""
    n_adjusted = n + 2
    b, c = gained + 0.5, lost + 0.5
    value = (b - c) / n_adjusted
    half = Z95 * math.sqrt((b + c) - (b - c) ** 2 / n_adjusted) / n_adjusted
    return max(-1.0, value - half), min(1.0, value + half)


def _normal_difference(
    value: float, stderr: float, method: Literal["paired", "unpaired"], n: int
) -> Difference:
    if stderr == 0:
        p_value = 1.0 if value == 0 else 0.0
    else:
        p_value = math.erfc(abs(value) / stderr / math.sqrt(2))
    half = Z95 * stderr
    return Difference(value, stderr, value - half, value + half, p_value, method, n)
