"""Reports for people, made from a JSON document and from nothing else.

:mod:`~vitpe_deploy.report.html` puts a page together, :mod:`~vitpe_deploy.report.verdict` says what
stands on its first screen, and every file of :mod:`~vitpe_deploy.report.charts` is one figure.
"""

from __future__ import annotations
