"""The figures of a benchmark report, one per file: each takes the report and gives SVG or None.

None means that the report holds nothing to draw; ``ABSENT`` of the file says what would give it.
"""

from __future__ import annotations
