"""The right to change or remove a row of `entry` on PostgreSQL, for the moment of a redaction or a pruning.

The log's account has no such right. Where it owns the table, as after `database.create`, it gives itself the right
inside the transaction and takes it back. Where the table belongs to a second role, which has no login of its own, the
account acts as that role for the one statement, if it is a member of it at that time; a database administrator may
keep it out until a redaction or pruning was approved.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from audit import tables
from audit.errors import AppendFailed

_OWNER = (
    "SELECT quote_ident(r.rolname), r.rolname = current_user, pg_has_role(current_user, r.oid, 'MEMBER'), "  # noqa: S608
    f"quote_ident(current_user) FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner "
    f"WHERE c.oid = '{tables.entry.name}'::regclass"
)


@contextmanager
def keeping(cursor: Any, right: Literal["UPDATE", "DELETE"]) -> Iterator[None]:
    """Hold `right` on the table of entries while a statement of a PostgreSQL transaction runs.

    Args:
        cursor: Of the transaction.
        right: What the statement does.

    Raises:
        AppendFailed: The table belongs to a role that this account isn't a member of; nothing was changed.
    """
    cursor.execute(_OWNER)
    owner, is_own, is_member, account = cursor.fetchone()
    if is_own:
        cursor.execute(f"GRANT {right} ON {tables.entry.name} TO CURRENT_USER")
        yield
        cursor.execute(f"REVOKE {right} ON {tables.entry.name} FROM CURRENT_USER")
        return
    if not is_member:
        raise AppendFailed(
            f"the table of entries belongs to role {owner}, and {account} isn't a member of it",
            hint=f"GRANT {owner} TO {account}; then start again: what is recorded as done is done at the start",
        )
    cursor.execute(f"SET LOCAL ROLE {owner}")
    yield
    cursor.execute("RESET ROLE")
