"""The HTML report as a reader meets it: on a phone, in the dark, on paper, offline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.report.example import example
from vitpe_deploy.report.html import render

pytestmark = pytest.mark.browser

COLUMN = """[...document.querySelectorAll('#results tbody tr')]
    .map(row => row.cells[{column}].textContent)"""


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Any:
    """The example, from the disk."""
    path = tmp_path / "report.html"
    path.write_text(render(example()), encoding="utf-8")
    browser.resize(1280, 900)
    browser.open(path.as_uri())
    yield browser
    assert browser.errors == []
    assert [a for a in browser.requests if not a.startswith(("file:", "data:"))] == []
    assert len([a for a in browser.requests if a.startswith("file:")]) == 1


def titles(page: Any) -> list[str]:
    found: list[str] = page.evaluate(
        "[...document.querySelectorAll('#results th')].map(t => t.textContent)"
    )
    return found


def test_tables_are_sorted_by_their_titles(page: Any) -> None:
    column = titles(page).index("median ms")
    read = COLUMN.format(column=column)
    before = page.evaluate(read)
    click = f"document.querySelectorAll('#results th button')[{column}].click()"
    page.evaluate(click)
    up = [float(t) for t in page.evaluate(read)]
    assert up == sorted(map(float, before))
    assert up != list(map(float, before))
    aria = f"document.querySelectorAll('#results th')[{column}].getAttribute('aria-sort')"
    assert page.evaluate(aria) == "ascending"
    page.evaluate(click)
    assert [float(t) for t in page.evaluate(read)] == up[::-1]
    assert page.evaluate(aria) == "descending"
    words = titles(page).index("row")
    page.evaluate(f"document.querySelectorAll('#results th button')[{words}].click()")
    found = page.evaluate(COLUMN.format(column=words))
    assert found[0].startswith("learned-1d fp32")
    assert page.evaluate(aria) == "none"


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_page_fits_the_screen(page: Any, width: int) -> None:
    """Only tables scroll sideways, each in its own box; text in figures stays readable."""
    page.resize(width, 740, phone=width < 500)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    least = page.evaluate(
        """Math.min(...[...document.querySelectorAll('svg text')].map(t =>
            parseFloat(getComputedStyle(t).fontSize) * t.ownerSVGElement.getScreenCTM().a))"""
    )
    assert least >= 8.5
    outside = page.evaluate(
        """[...document.querySelectorAll('svg')].flatMap(s => {
            const box = s.getBoundingClientRect();
            return [...s.querySelectorAll('text')].filter(t => {
                const b = t.getBoundingClientRect();
                return b.left < box.left - 1 || b.right > box.right + 1
                    || b.top < box.top - 1 || b.bottom > box.bottom + 1;
            }).map(t => t.textContent);
        })"""
    )
    assert outside == []


def test_first_screen_of_a_phone_is_the_verdict(page: Any) -> None:
    page.resize(360, 740, phone=True)
    bottom = "document.querySelector('{}').getBoundingClientRect().bottom"
    assert page.evaluate(bottom.format("h1")) < 250
    assert page.evaluate(bottom.format(".checks")) <= 740


@pytest.mark.parametrize(("colours", "media"), [("light", ""), ("dark", ""), ("dark", "print")])
def test_words_stand_out(page: Any, colours: str, media: str) -> None:
    """WCAG contrast of at least 4.5 for text, in both themes and on paper, which is white."""
    page.prefer(colours=colours, media=media)
    found = page.evaluate(
        """(() => {
          const rgb = c => c.match(/[\\d.]+/g).slice(0, 3).map(Number);
          const light = c => {
            const [r, g, b] = rgb(c).map(v => v / 255).map(v =>
              v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const paper = light(getComputedStyle(document.body).backgroundColor);
          const all = [...document.querySelectorAll('h1, h2, p, li, td, dd, dt, figcaption')]
            .map(e => getComputedStyle(e).color)
            .concat([...document.querySelectorAll('svg text')].map(e => getComputedStyle(e).fill));
          const ratios = all.map(c => {
            const [a, b] = [light(c), paper].sort((x, y) => y - x);
            return (a + 0.05) / (b + 0.05);
          });
          return [paper, Math.min(...ratios)];
        })()"""
    )
    paper, least = found
    assert (paper > 0.5) == (colours == "light" or media == "print")
    assert least >= 4.5
