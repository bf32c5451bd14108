"""Write the pages that are generated from the code, so that page and program can't differ.

`deploy/ERRORS.md` lists every error code with its exit status, cause and cure; `deploy/EVENTS.md` every action of the
audit log with the module that writes it. A test compares the pages with what this writes.
"""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

PAGE = ROOT / "deploy" / "ERRORS.md"
EVENTS = ROOT / "deploy" / "EVENTS.md"
HEAD = """# Error codes

Every error that Confide prints has one of these codes: `error CODE: what happened`, then `hint: what to do`. Codes
never change their meaning. Other parties see a code and a reference id, never the text. This page is written by
`make documents`.

Exit statuses: 0 done · 1 failed, or a check found something · 2 usage or input · 3 can't reach or authenticate ·
4 refused by policy or budget · 5 timed out · 70 internal error · 78 configuration · 130 interrupted. A code of the
audit log that stops a start exits with 78.
"""


EVENTS_HEAD = """# Actions of the audit log

Every action that an entry can have, what it says, and the modules that write it, each where the act happens. An entry's
decision is `allowed`, `refused` (a rule or a person said no) or `failed` (tried and broke); the last two carry a code.
C is the coordinator's log, S a site's. This page is written by `make documents`, from the models and the sources.

| action | log | says | written by |
|---|---|---|---|
"""
# Actions whose part of the product doesn't exist yet. Once a module writes one, the page names the module.
NOT_YET = {
    "key.added": "changing the keys of a running log",
    "key.revoked": "changing the keys of a running log",
    "user.logout": "sessions of a console; the API has a token for each request",
    "peer.contradicted": "comparing what another party's log holds",
    "witness.acknowledged": "going on after a proved fork",
    "audit.pruned": "pruning",
}
_PARTIES = {"coordinator": ("C",), "site_client": ("S",), "federation": ("C", "S"), "audit": ("C", "S")}


def writers() -> dict[str, list[str]]:
    """Return, by action, the modules that use the action's model, beside `audit/events` itself."""
    from audit.events import ACTIONS

    names = {model.__name__: action for action, model in ACTIONS.items()}
    found: dict[str, list[str]] = {action: [] for action in ACTIONS}
    for folder in _PARTIES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            module = path.relative_to(ROOT).as_posix()
            used = {names[name] for name in _models_used(ast.parse(path.read_text(encoding="utf-8"))) if name in names}
            for action in used:
                found[action].append(module)
    return found


def _models_used(tree: ast.Module) -> set[str]:
    """Return what a module uses as `events.Model`, or imports from `audit.events` by name."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="events" | "audit_events"), attr=name):
                found.add(name)
            case ast.ImportFrom(module="audit.events", names=imported):
                found |= {one.name for one in imported}
    return found


def events_page() -> str:
    """Return the page of actions."""
    from audit.events import ACTIONS

    rows = []
    for action, modules in writers().items():
        parties = sorted({party for module in modules for party in _PARTIES[module.split("/")[0]]})
        said = _cell((ACTIONS[action].__doc__ or "").split("\n")[0])
        by = ", ".join(f"`{module}`" for module in modules)
        where = by or f"its part doesn't exist yet: {NOT_YET.get(action, 'nobody wrote what')}"
        rows.append(f"| `{action}` | {' '.join(parties)} | {said} | {where} |\n")
    return EVENTS_HEAD + "".join(rows)


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
    """Write each page, and the JSON Schema of the audit log's events."""
    from audit.events.schema import SHIPPED, made_from_models

    PAGE.write_text(errors_page(), encoding="utf-8")
    EVENTS.write_text(events_page(), encoding="utf-8")
    SHIPPED.write_bytes(made_from_models())


if __name__ == "__main__":
    main()
