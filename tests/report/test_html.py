"""The HTML report: from the document alone, escaped, and nothing from anywhere else."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from tests.report.example import SCRIPT, example, layer_verdict, row
from vitpe_deploy.bench.documents import BenchReport
from vitpe_deploy.bench.markdown import markdown
from vitpe_deploy.report import scale
from vitpe_deploy.report.charts import distribution, layers, peak, resolution, size_latency
from vitpe_deploy.report.html import render
from vitpe_deploy.report.names import short_names
from vitpe_deploy.report.verdict import checklist, verdict


class Page(HTMLParser):
    """Tags that are open at the end, addresses, and the text of the page."""

    VOID = frozenset({"meta", "link", "br", "img", "input", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [v or "" for k, v in attrs if k in ("href", "src", "action", "data")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [v or "" for k, v in attrs if k in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def text() -> str:
    return render(example())


def test_page_is_whole_and_names_no_other_file(text: str) -> None:
    page = Page(text)
    assert page.open == []
    assert page.addresses == ["data:,"]
    assert not re.search(r"@import|url\(|https?://|fetch\(|XMLHttp", text)


def test_what_the_document_says_is_escaped(text: str) -> None:
    assert SCRIPT not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_document_alone_makes_the_page(text: str) -> None:
    read = BenchReport.model_validate_json(example().model_dump_json(by_alias=True))
    assert render(read) == text


def test_fast_wrong_row_is_the_headline() -> None:
    report = example()
    wrong = min(
        (r for r in report.results if r.latency_ms is not None),
        key=lambda r: r.latency_ms.median if r.latency_ms else 0.0,
    )
    assert wrong.agreement is not None
    assert not wrong.agreement.passed  # it is the fastest of all
    said = verdict(report)
    assert said.state == "wrong"
    assert said.headline == "1 row did not run; 1 of 14 rows does not agree with PyTorch"
    assert "int8 onnxruntime 224x224 7.52 ms" in said.detail
    assert verdict(example(wrong=False)).state == "good"
    words = " ".join(Page(render(report)).words)
    assert "faster, but WRONG" in words
    assert "WRONG" not in " ".join(Page(render(example(wrong=False))).words)


def test_checklist_says_what_was_found() -> None:
    states = {check.title: check.state for check in checklist(example())}
    assert states["Every planned row ran"] == "wrong"
    assert states["Every row agrees with PyTorch"] == "wrong"
    assert states["The machine was quiet and steady"] == "look"
    assert states["Measuring costs less than 1 % of a sample"] == "good"
    good = checklist(example(wrong=False))
    assert {check.state for check in good} == {"good"}
    slow = example(wrong=False)
    assert slow.harness is not None
    slow = slow.model_copy(
        update={"harness": slow.harness.model_copy(update={"sample_overhead_ms": 0.06})}
    )
    assert next(c for c in checklist(slow) if c.title.startswith("Measuring")).state == "look"


def test_no_reference_is_not_called_agreement() -> None:
    rows = (row("none", "openvino", 224, 5.0, error=None),)
    report = example(wrong=False).model_copy(update={"results": rows, "comparisons": ()})
    assert verdict(report).state == "look"
    states = {check.title: check.state for check in checklist(report)}
    assert states["Every row agrees with PyTorch"] == "unknown"


def test_names_are_what_tells_rows_apart() -> None:
    report = example()
    names = short_names(report.results)
    assert len(set(names)) == len(names)
    assert names[0] == "learned-1d fp32 onnxruntime 224x224"
    pair = [row("none", "openvino", 224, 5.0), row("none", "onnxruntime", 224, 5.0)]
    assert short_names(pair) == ["openvino", "onnxruntime"]


def test_lines_of_latency_against_resolution() -> None:
    lines = resolution.series(example().results)
    assert set(lines) == {
        f"{encoding} {engine}"
        for encoding in ("learned-1d", "rope-2d")
        for engine in ("onnxruntime", "openvino")
    }
    xs, ys = zip(*lines["learned-1d onnxruntime"], strict=True)
    assert xs == (224, 384, 512)
    assert ys == pytest.approx([12.0 * (x / 224) ** 2.2 for x in xs], rel=0.01)
    one = [r for r in example().results if r.resolution == (224, 224)]
    assert resolution.series(one) == {}


def test_every_sample_is_drawn_or_counted() -> None:
    """The outliers at twice the median lie beyond the axis, and the label says how many."""
    (figure,) = [
        drawing
        for caption, drawing in distribution.draw(
            example().model_copy(update={"results": (row("none", "openvino", 224, 10.0),)})
        )
    ]
    samples = np.asarray(row("none", "openvino", 224, 10.0).samples_ms)
    assert (samples > 15).sum() == 2
    assert re.search(r"openvino: 10\.\d+ ms, p95 1\d\.\d+", figure)


def test_colour_is_accuracy() -> None:
    equal, near, far = (row("none", "openvino", 224, 5.0, error=e) for e in (1e-7, 3e-4, 0.5))
    unknown = row("none", "openvino", 224, 5.0, error=None)
    shades = [size_latency.colour(r, 1, 0, labelled=False) for r in (equal, near, far, unknown)]
    assert shades == ["q4", "q2", "q0", "qx"]
    best, worst = (row("none", "openvino", 224, 5.0, top1=t) for t in (0.95, 0.5))
    assert size_latency.colour(best, 0.95, 0.5, labelled=True) == "q4"
    assert size_latency.colour(worst, 0.95, 0.5, labelled=True) == "q0"


def test_bars_are_the_share_of_the_peak() -> None:
    report = example()
    ((caption, figure),) = peak.draw(report)
    assert caption == "100 % is 200 GFLOP/s, measured in this run"
    widths = [float(w) for w in re.findall(r'width="([\d.]+)" height="8.0" class="bar', figure)]
    shares = [r.share_of_peak or 0.0 for r in report.results]
    assert widths == pytest.approx([300 * share for share in shares], abs=0.06)


def test_layers_are_drawn_against_their_limit() -> None:
    ((_, figure),) = layers.draw(example())
    assert figure.count("<polyline") == 2
    assert 'class="limit"' in figure
    assert layers.draw(example().model_copy(update={"layers": ()})) == []


@pytest.mark.parametrize("decides", [True, False])
def test_blocks_outside_tolerance_are_wrong_where_they_decide(decides: bool) -> None:
    """int8 passes on agreement: its blocks are shown, and not called wrong."""
    found = layer_verdict("onnxruntime", [1e-5, 2e-2]).model_copy(update={"decides": decides})
    report = example().model_copy(update={"layers": (found,)})
    ((_, figure),) = layers.draw(report)
    assert ("wrong from block 1" in figure) == decides
    assert ("**wrong from block 1**" in markdown(report)) == decides
    assert ("worst max rel 2.0e-02, agreement decides" in markdown(report)) != decides


def test_axes_have_round_numbers() -> None:
    assert scale.ticks(0, 10) == (0, 2, 4, 6, 8, 10)
    assert scale.ticks(0.13, 0.29) == (0.15, 0.2, 0.25)
    assert scale.log_ticks(200, 600) == (200, 500) or len(scale.log_ticks(200, 600)) >= 3
    assert all(200 <= t <= 600 for t in scale.log_ticks(200, 600))
    middle = scale.logarithmic(1, 100, 0, 100)
    assert middle(10) == pytest.approx(50)
    with pytest.raises(ValueError, match="above 0"):
        scale.logarithmic(0, 1, 0, 1)
