"""patheval: evaluate PaTH-attention language models through lm-evaluation-harness and vLLM."""

__version__ = "0.1.0"
