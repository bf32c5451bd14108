"""A report as one HTML file: no script, nothing loaded from elsewhere, every text escaped; pure."""

from collections.abc import Iterator
from html import escape
from typing import Final

from audit.columns import format_time
from audit.export.report_sections import HOW_TO_VERIFY, LIMITS
from audit.export.report_view import ReportView, Section
from audit.visible import visible

_STYLE: Final = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; color: #1b1f24; background: #fff;
  margin: 2.5rem auto; max-width: 92rem; padding: 0 1.5rem; }
h1 { font-size: 1.7rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .3rem; }
p { margin: .3rem 0 .8rem; max-width: 60rem; } .quiet { color: #57606a; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.2rem; margin: 1rem 0; }
dt { color: #57606a; } dd { margin: 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 12.5px; }
th, td { text-align: left; vertical-align: top; padding: .35rem .5rem; border-bottom: 1px solid #d8dee4; }
th { border-bottom: 2px solid #8c959f; font-weight: 600; }
td { overflow-wrap: anywhere; min-width: 3.4rem; }
td.plain { min-width: 5.6rem; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
td.code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: 11.5px; }
td.code { min-width: 11rem; } td.code.short { min-width: 0; }
td.moment, td.short { white-space: nowrap; }
pre { background: #f6f8fa; padding: .7rem .9rem; white-space: pre-wrap; overflow-wrap: anywhere; }
.answer { font-size: 1.08rem; border-left: 4px solid #0969da; background: #f0f6ff; padding: .6rem .9rem; }
.note { border-left: 4px solid #bf8700; background: #fff8e5; padding: .5rem .9rem; }
@media print {
  body { margin: 0; max-width: none; padding: 0; font-size: 10pt; } table { font-size: 7.5pt; }
  thead { display: table-header-group; }
  tr { break-inside: avoid; } .wide { overflow: visible; } @page { size: A4 landscape; margin: 12mm; }
}
"""
_CODES: Final = frozenset({"hash", "policy", "pseudonym"})
_NUMBERS: Final = frozenset({"round", "bytes", "openings", "left_count", "left_bytes", "epsilon", "total", "left"})


def _text(value: object) -> str:
    return escape(visible(str(value)), quote=True)


def _cell(name: str, value: object) -> str:
    kinds = {
        "number": name in _NUMBERS,
        "code short": name in ("leaf", "entry"),
        "code": name in _CODES,
        "moment": name in ("time", "action"),
    }
    kind = next((kind for kind, holds in kinds.items() if holds), "")
    return f'<td class="{kind or "plain"}">{_text(value)}</td>'


def _section(section: Section) -> Iterator[str]:
    yield f'<section id="{_text(section.key)}"><h2>{_text(section.title)}</h2>'
    yield f'<p class="quiet">{_text(section.intro)}</p>\n'
    if not section.rows:
        yield f"<p>{_text(section.nothing)}</p></section>\n"
        return
    # A column that no row fills takes the room of the others.
    columns = [column for column in section.columns if any(str(row.get(column[0], "")) for row in section.rows)]
    heads = "".join(f'<th scope="col">{_text(heading)}</th>' for _, heading in columns)
    yield f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>\n'
    for row in section.rows:
        yield "<tr>" + "".join(_cell(name, row.get(name, "")) for name, _ in columns) + "</tr>\n"
    yield "</tbody></table></div></section>\n"


def html_of(view: ReportView) -> Iterator[str]:
    """Yield the pieces of the file."""
    head = view.head
    title = f"Use of data, as the audit log of {head.origin} records it"
    facts = [
        *((name, value) for name, value in head.asked),
        ("log", head.origin),
        ("made", f"{format_time(head.made_us).split('.')[0]}Z by {head.made_by}"),
        ("read for it", head.read),
        ("checkpoint", f"{head.size} entries, root {head.root}"),
        ("witnesses", head.witnessed),
        ("times", head.bracket),
        ("keys pinned by", head.pinned_by or "no trust policy: nobody has compared these keys"),
    ]
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
    yield (
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    )
    yield f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body>\n<h1>{_text(title)}</h1>\n"
    yield '<p class="quiet">All times are UTC.</p>\n<dl>'
    yield "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in facts)
    yield f'</dl>\n<p class="answer">{_text(view.answer)}</p>\n'
    if head.witnessed.startswith("not yet"):
        yield f'<p class="note">This log is {_text(head.witnessed)} (CFD-A45).</p>\n'
    for section in view.sections:
        yield from _section(section)
    yield "<h2>What this report doesn't show</h2><ul>"
    yield "".join(f"<li>{_text(limit)}</li>" for limit in LIMITS)
    yield "</ul>\n<h2>How to verify it</h2><ul>"
    yield "".join(f"<li>{_text(step)}</li>" for step in HOW_TO_VERIFY)
    yield "</ul><p>Compare these keys with the log's owner, over the phone or from a letter:</p><pre>"
    yield _text("\n".join(head.keys)).replace("\\u{a}", "\n")
    yield "</pre>\n</body></html>\n"
