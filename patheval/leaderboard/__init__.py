"""Leaderboards from lm-eval results files: rows, statistics, tables, plots, one page.

`collect` reads files into rows, `board` compares them, and `tables`, `plots` and `page` write what
people read. Nothing here needs torch or vLLM.
"""
