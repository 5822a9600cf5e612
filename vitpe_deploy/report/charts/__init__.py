"""The figures of a benchmark report, one per file.

``draw`` takes the report and gives captions with drawings; an empty list means that the report
holds nothing to draw, and ``ABSENT`` says what would give it.
"""

from __future__ import annotations
