"""The collector is left as it was found, whatever happens inside."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from patheval.model_adapters import _frozen_heap
from patheval.model_adapters._frozen_heap import frozen_heap


class Node:
    """An object that only the collector can free."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def nothing_frozen() -> Iterator[None]:
    gc.unfreeze()
    gc.collect()  # so that none is due while a test makes its objects
    yield
    gc.unfreeze()


def test_only_what_exists_already_is_spared() -> None:
    before = weakref.ref(Node())
    with frozen_heap():
        inside = weakref.ref(Node())
        gc.collect()
        assert before() is not None and inside() is None
    gc.collect()
    assert before() is None


def test_an_error_and_a_call_inside_another_leave_nothing_frozen() -> None:
    with pytest.raises(ValueError), frozen_heap():
        with frozen_heap():
            pass
        assert gc.get_freeze_count() > 0
        raise ValueError
    assert gc.get_freeze_count() == 0


def test_a_caller_s_own_frozen_objects_stay_frozen() -> None:
    gc.freeze()
    count = gc.get_freeze_count()
    with frozen_heap():
        pass
    assert gc.get_freeze_count() == count


def test_what_python_has_frozen_at_its_start_is_not_a_caller_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python 3.12 starts with 375 frozen objects."""
    gc.freeze()
    monkeypatch.setattr(_frozen_heap, "_NUM_FROZEN_AT_START", gc.get_freeze_count())
    before = weakref.ref(Node())
    with frozen_heap():
        gc.collect()
        assert before() is not None
    gc.collect()
    assert before() is None
