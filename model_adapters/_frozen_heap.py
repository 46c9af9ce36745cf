"""Python's garbage collector and a heap full of imported modules."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Spares what exists already the collector's walks while many small objects are made.

    One walk over all that PyTorch, Transformers and vLLM leave behind takes as long as thousands of
    short requests. Where a caller has frozen objects itself, nothing is changed.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
