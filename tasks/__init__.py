"""Task definitions for lm-evaluation-harness; installed as patheval.tasks."""
