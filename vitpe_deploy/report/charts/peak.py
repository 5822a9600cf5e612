"""Share of the machine's fp32 matrix product peak: how far the physical limit is."""

from __future__ import annotations

from vitpe_deploy.bench.documents import BenchReport
from vitpe_deploy.report import svg
from vitpe_deploy.report.names import short_names

TITLE = "Share of the machine's peak"
ABSENT = "Rows executed in float32 give it, where the peak could be measured."

_LANE = 30.0


def draw(report: BenchReport) -> list[tuple[str, str]]:
    """One bar per row that was executed in float32."""
    rows = [row for row in report.results if row.share_of_peak is not None]
    if not rows:
        return []
    parts = []
    for number, (row, name) in enumerate(zip(rows, short_names(rows), strict=True)):
        top = _LANE * number
        share = row.share_of_peak or 0.0
        parts.append(svg.text(8, top + 12, name, "label"))
        parts.append(svg.rectangle(8, top + 17, 300, 8, "rail"))
        kind = "bar s0"
        parts.append(svg.rectangle(8, top + 17, 300 * min(share, 1.0), 8, kind))
        parts.append(svg.text(352, top + 25, f"{share:.0%}", "label", "end"))
    peak = report.host.gemm_peak_gflops
    caption = "" if peak is None else f"100 % is {peak:.0f} GFLOP/s, measured in this run"
    return [(caption, svg.figure(_LANE * len(rows) + 4, TITLE, parts))]
