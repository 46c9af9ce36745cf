"""Timed runs; their results are kept under leaderboards/performance/."""
