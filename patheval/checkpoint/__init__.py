"""Reading checkpoints in flash-linear-attention's format: config, tensor names, weight files."""
