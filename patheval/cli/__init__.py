"""The command line. Command modules import lm-eval, torch and vLLM only when they run."""
