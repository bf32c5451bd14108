"""A report as a PDF; the one module that imports fpdf2, which the extra `confide[pdf]` brings.

Text is text here: fpdf2 is asked for no markup. The fonts are those that every PDF reader has, which know Latin letters
only; every other character appears as ``\\u{4e2d}``, so that nothing is lost or shown as something else.
"""

from datetime import UTC, datetime
from typing import Any, Final

from audit.columns import format_time
from audit.errors import LogUnreadable
from audit.export.report_sections import HOW_TO_VERIFY, LIMITS
from audit.export.report_view import ReportView, Section
from audit.visible import visible

_FONT: Final = "Helvetica"
_WEIGHTS: Final = {
    "purpose": 3.0,
    "under": 3.2,
    "actor": 2.6,
    "hash": 3.4,
    "policy": 3.0,
    "leaf": 1.9,
    "time": 1.9,
    "span": 2.2,
    "dataset": 2.2,
    "about": 3.0,
    "asked": 3.0,
    "job": 2.2,
    "action": 1.9,
    "round": 0.9,
    "entry": 0.8,
    "unit": 0.9,
    "pseudonym": 3.0,
}


def _latin(text: str) -> str:
    shown = visible(str(text))
    shown = shown.replace("…", "...")
    return "".join(one if one.isascii() or "\xa1" <= one <= "\xff" else f"\\u{{{ord(one):x}}}" for one in shown)


def pdf_of(view: ReportView) -> bytes:
    """Return the bytes of the PDF.

    Raises:
        LogUnreadable: fpdf2 isn't installed.
    """
    try:
        from fpdf import FPDF
    except ImportError:
        raise LogUnreadable("a PDF needs fpdf2", hint="install confide[pdf], or write --out report.html") from None

    class _Pages(FPDF):  # type: ignore[misc]
        def footer(self) -> None:
            self.set_y(-10)
            self.set_font(_FONT, size=7)
            self.cell(0, 5, _latin(f"{view.head.origin}   page {self.page_no()} of {{nb}}"), align="R")

    pages = _Pages(orientation="landscape", format="A4")
    pages.set_creation_date(datetime.fromtimestamp(view.head.made_us // 1_000_000, UTC))
    pages.set_title(_latin(f"Use of data, audit log {view.head.origin}"))
    pages.set_lang("en")
    pages.set_margin(12)
    pages.set_auto_page_break(True, margin=14)
    pages.add_page()
    _write_head(pages, view)
    pages.ln(2)
    pages.set_font(_FONT, size=10)
    pages.multi_cell(0, 5, _latin(view.answer), new_x="LMARGIN", new_y="NEXT")
    for section in view.sections:
        _write_section(pages, section)
    _write_list(pages, "What this report doesn't show", LIMITS)
    _write_list(pages, "How to verify it", (*HOW_TO_VERIFY, "Compare these keys with the log's owner:"))
    pages.set_font("Courier", size=8)
    for key in view.head.keys:
        for line in key.split("\n"):
            pages.multi_cell(0, 4, _latin(line), new_x="LMARGIN", new_y="NEXT")
    return bytes(pages.output())


def _write_head(pages: Any, view: ReportView) -> None:
    head = view.head
    pages.set_font(_FONT, style="B", size=15)
    pages.multi_cell(
        0, 8, _latin(f"Use of data, as the audit log of {head.origin} records it"), new_x="LMARGIN", new_y="NEXT"
    )
    facts = [
        *head.asked,
        ("made", f"{format_time(head.made_us).split('.')[0]}Z by {head.made_by}"),
        ("read for it", head.read),
        ("checkpoint", f"{head.size} entries, root {head.root}"),
        ("witnesses", head.witnessed),
        ("times", f"{head.bracket}; all times are UTC"),
        ("keys pinned by", head.pinned_by or "no trust policy: nobody has compared these keys"),
    ]
    for name, value in facts:
        pages.set_font(_FONT, style="B", size=9)
        pages.cell(32, 5, _latin(name))
        pages.set_font(_FONT, size=9)
        pages.multi_cell(0, 5, _latin(value), new_x="LMARGIN", new_y="NEXT")


def _write_section(pages: Any, section: Section) -> None:
    _write_title(pages, section.title)
    pages.multi_cell(0, 4, _latin(section.intro if section.rows else section.nothing), new_x="LMARGIN", new_y="NEXT")
    if not section.rows:
        return
    pages.ln(1)
    pages.set_font(_FONT, size=6.5)
    weights = tuple(_WEIGHTS.get(name, 1.3) for name, _ in section.columns)
    with pages.table(
        col_widths=weights, line_height=3.2, text_align="LEFT", padding=0.6, borders_layout="HORIZONTAL_LINES"
    ) as table:
        heading = table.row()
        for _, title in section.columns:
            heading.cell(_latin(title))
        for row in section.rows:
            line = table.row()
            for name, _ in section.columns:
                line.cell(_latin(str(row.get(name, ""))))


def _write_title(pages: Any, title: str) -> None:
    pages.ln(4)
    if pages.will_page_break(30):
        pages.add_page()
    pages.set_font(_FONT, style="B", size=11)
    pages.cell(0, 6, _latin(title), new_x="LMARGIN", new_y="NEXT")
    pages.set_font(_FONT, size=8)


def _write_list(pages: Any, title: str, lines: tuple[str, ...]) -> None:
    _write_title(pages, title)
    for line in lines:
        pages.multi_cell(0, 4, _latin(f"- {line}"), new_x="LMARGIN", new_y="NEXT")
