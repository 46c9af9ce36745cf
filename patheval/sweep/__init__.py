"""Length sweeps: many models on many tasks, each engine loaded once, resumable.

`options` says what to run, `plan` checks it and lists the cells, `run` runs them, `progress` shows
them. A cell is one model on one task.
"""
