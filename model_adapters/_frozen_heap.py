"""Python's garbage collector and a heap full of imported modules."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Python 3.12 has frozen some objects of its own before any program runs.
_NUM_FROZEN_AT_START = gc.get_freeze_count()


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Spares what exists already the collector's walks while many small objects are made.

    One walk over all that PyTorch, Transformers and vLLM leave behind takes as long as thousands of
    short requests. Where a caller has frozen objects itself, nothing is changed.
    """
    if gc.get_freeze_count() > _NUM_FROZEN_AT_START:
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
