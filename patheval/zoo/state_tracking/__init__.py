"""The zoo's state-tracking family: tiny models that only flip-flops, recall or A5 can be asked of.

Trained from scratch in plain float32 PyTorch, all seeds of one recipe in one pass.
"""
