"""Memory that nothing of ours holds any more, given back before an engine asks for its own."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

_REMEMBERED = ("_current_node", "_graph", "_match")
"""What a matcher keeps of its last match, and sets anew at the start of the next."""


def forget_rewritten_graph() -> None:
    """Make the rules of onnxscript's rewriter forget the last graph, weights and all.

    They live as long as the process and keep the node that they looked at last; torch's exporter
    runs them over every graph. One such node holds a whole model.
    """
    from onnxscript.rewriter.pattern import SimplePatternMatcher

    # By type(): isinstance would ask every object, and some answer with warnings.
    for matcher in [m for m in gc.get_objects() if type(m) is SimplePatternMatcher]:
        for name in _REMEMBERED:
            if hasattr(matcher, name):
                setattr(matcher, name, None)


def trim_memory() -> None:
    """Collect cycles, and give back what was freed."""
    gc.collect()
    give_back_memory()


def give_back_memory() -> None:
    """Give back what the C library keeps of freed memory (glibc only).

    Freed weights of some megabytes each stay in the heap of glibc, those of an engine that was
    closed too, in the way of the next engine that is about to load its own copy of them.
    """
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
