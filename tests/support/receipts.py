"""Receipts of entries that no log holds, for tests of what takes one."""

from audit.receipt import Receipt, issue


def leased(job: str, round_number: int, *, steps: int) -> Receipt:
    """Return the receipt of a `budget.leased` entry."""
    event = {"action": "budget.leased", "decision": "allowed", "job": job, "round": round_number}
    return issue("heart.example.org/mercy/audit/1", 0, b"", {**event, "budget": {"steps": steps}})


def sent(action: str, *, digest: str, size_bytes: int) -> Receipt:
    """Return the receipt of an entry that says what leaves."""
    egress = {"what": "update", "hash": f"sha256:{digest}", "bytes": size_bytes}
    event = {"action": action, "decision": "allowed", "egress": egress}
    return issue("heart.example.org/mercy/audit/1", 0, b"", event)
