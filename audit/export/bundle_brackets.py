"""Between what times entries came to be, by the clocks of a log's witnesses; pure."""

from audit.columns import format_time


def bracket_text(times: list[tuple[int, int]], first: int, end: int) -> str:
    """Return what the witnesses' clocks say of when the entries from `first` up to `end` came to be.

    Args:
        times: Size and time in seconds of each checkpoint with a quorum.
        first: The first index.
        end: The index behind the last.
    """
    before = max((one for one in times if one[0] <= first), default=None)
    after = min((one for one in times if one[0] >= end), default=None)
    part = max((one for one in times if first < one[0] < end), default=None)
    if after is None and part is not None:
        shown = "" if before is None else f" shown to no witness before {format_time(before[1] * 1_000_000)},"
        return (
            f"by the witnesses' clocks:{shown} those up to entry {part[0] - 1} there by"
            f" {format_time(part[1] * 1_000_000)}; no witness says when the later ones were"
        )
    if before is None and after is None:
        return "the times are those of the log's own clock: no witness says when"
    shown = "" if before is None else f" shown to no witness before {format_time(before[1] * 1_000_000)},"
    there = "" if after is None else f" there by {format_time(after[1] * 1_000_000)}"
    return f"by the witnesses' clocks:{shown}{there}".rstrip(",")
