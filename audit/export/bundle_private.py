"""The private values in a bundle: each opens the commitment of an entry that is a row, or is a flaw; pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from audit.canonical import Event
from audit.commitments import commitment_of
from audit.errors import NotCanonical
from audit.export import bundle
from audit.export.container import BundleFiles
from audit.findings import Flaw
from audit.proof_file import MAX_BYTES


@dataclass(slots=True)
class PrivateValues:
    """Field, salt and value by entry, of which each is checked once."""

    _left: dict[int, list[tuple[str, bytes, bytes]]] = field(default_factory=dict)

    def read(self, files: BundleFiles) -> Iterator[Flaw]:
        """Take in the container's file, and yield what in it isn't understood."""
        if bundle.PRIVATE not in files.sizes:
            return
        number = 0
        with files.open(bundle.PRIVATE) as stream:
            while line := stream.readline(MAX_BYTES):
                number += 1
                try:
                    index, name, salt, value = bundle.parse_private_line(line)
                except NotCanonical as refused:
                    yield Flaw("CFD-A14", bundle.PRIVATE, f"line {number} is {refused.message}")
                    continue
                self._left.setdefault(index, []).append((name, salt, value))

    def check(self, index: int, event: Event) -> Iterator[Flaw]:
        """Yield the values of the entry at `index` that don't open its commitments."""
        committed = event.get("private")
        for name, salt, value in self._left.pop(index, ()):
            wanted = committed.get(name) if isinstance(committed, dict) else None
            if commitment_of(salt, name, value) != wanted:
                yield Flaw("CFD-A15", f"entry {index}", f"the value of {name} in {bundle.PRIVATE} doesn't open it")

    def left(self) -> Iterator[Flaw]:
        """Yield the entries for which there are values, and which are no rows."""
        for index in sorted(self._left):
            yield Flaw("CFD-A15", f"entry {index}", f"{bundle.PRIVATE} has a value for it, and it is no row")
