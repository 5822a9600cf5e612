"""Many exports or benchmarks from one TOML file: ``vitpe-export jobs.toml``.

A job is a command line: :mod:`~vitpe_deploy.jobs.file` makes them from the file,
:mod:`~vitpe_deploy.jobs.run` runs each in a process of its own and remembers what is finished,
:mod:`~vitpe_deploy.jobs.summary` says what came of them.
"""

from __future__ import annotations
