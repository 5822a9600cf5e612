"""Timing that can be believed: one child process per candidate, interleaved rounds, paired ratios.

A reader's way through: :mod:`~vitpe_deploy.bench.rounds` measures candidates,
:mod:`~vitpe_deploy.bench.process` and :mod:`~vitpe_deploy.bench.child` are the two ends of a timed
process, :mod:`~vitpe_deploy.bench.statistics` says what the samples mean.
"""

from __future__ import annotations
