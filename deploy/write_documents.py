"""Write the pages that are generated from the code, so that page and program can't differ.

`deploy/ERRORS.md` lists every error code with its exit status, cause and cure. A test compares the page with what
this writes.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

PAGE = ROOT / "deploy" / "ERRORS.md"
HEAD = """# Error codes

Every error that Confide prints has one of these codes: `error CODE: what happened`, then `hint: what to do`. Codes
never change their meaning. Other parties see a code and a reference id, never the text. This page is written by
`make documents`.

Exit statuses: 0 done · 1 failed, or a check found something · 2 usage or input · 3 can't reach or authenticate ·
4 refused by policy or budget · 5 timed out · 70 internal error · 78 configuration · 130 interrupted. A code of the
audit log that stops a start exits with 78.
"""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def errors_page() -> str:
    """Return the page of error codes."""
    from audit.errors import CODES as AUDIT_CODES
    from federation.codes import BUDGET, CODES

    rest = {code: row for code, row in CODES.items() if code not in BUDGET}
    parts = [HEAD]
    for title, table in (
        ("Configuration, identities, link, plans, policies, data, rounds and jobs", rest),
        ("Privacy", BUDGET),
        ("Audit", AUDIT_CODES),
    ):
        parts.append(f"\n## {title}\n\n| code | exit | cause | cure |\n|---|---|---|---|\n")
        parts += [
            f"| `{row.code}` | {row.exit_status} | {_cell(row.cause)} | {_cell(row.cure)} |\n"
            for _, row in sorted(table.items())
        ]
    return "".join(parts)


def main() -> None:
    """Write each page."""
    PAGE.write_text(errors_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
