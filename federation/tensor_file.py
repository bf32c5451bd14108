"""Named tensors in a safetensors file: written in one canonical order, read strictly, in windows.

The format is safetensors' own (u64 little-endian length, JSON header, raw little-endian bytes), so that every other
reader opens what is written here. Reading is narrower than the format: offsets must follow each other without gap or
overlap, lengths must equal shape times width, types must be ones that can be averaged or carried. Nothing in a file
is ever executed, and a reader holds one window (4 MiB) of a tensor, whatever the model's size.

Types: float16, float32 and float64 are averaged; bool, int8…int64 and uint8 are constants of the model (kept from the
global model, never part of an update). bfloat16, complex and 8-bit floats are refused by name.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from federation.errors import InvalidInput

WINDOW_BYTES: Final = 4 << 20
MAX_HEADER_BYTES: Final = 16 << 20
MAX_TENSORS: Final = 65_536
MAX_NAME_CHARACTERS: Final = 256
MAX_DIMENSIONS: Final = 8

Array = npt.NDArray[Any]

FLOATS: Final[Mapping[str, str]] = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
CONSTANTS: Final[Mapping[str, str]] = {
    "BOOL": "|b1",
    "I8": "|i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "U8": "|u1",
}
_NUMPY: Final[dict[str, np.dtype[Any]]] = {name: np.dtype(code) for name, code in {**FLOATS, **CONSTANTS}.items()}
_NAMES: Final = {dtype.newbyteorder("="): name for name, dtype in _NUMPY.items()}


class TensorFileRefused(InvalidInput):
    """The bytes are no tensor file of this kind; nothing of them was used."""

    def __init__(self, message: str) -> None:
        super().__init__("CFD-R60", message)


class TypeNotAveraged(InvalidInput):
    """A tensor has a type that can be neither averaged nor carried; refused when the job is created."""

    def __init__(self, name: str, dtype: str) -> None:
        super().__init__(
            "CFD-P11",
            f"tensor {name} is {dtype}; averaged are float16, float32, float64, carried are bool and integers",
            hint="convert the tensor to float32 and declare it so",
        )


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Type (safetensors' name, such as F32) and shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Return the number of elements; 1 for a scalar, 0 where a dimension is 0."""
        return math.prod(self.shape)

    @property
    def numpy(self) -> np.dtype[Any]:
        """Return the little-endian numpy type."""
        return _NUMPY[self.dtype]

    @property
    def size_bytes(self) -> int:
        """Return the raw size."""
        return self.elements * self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        """Return whether the tensor is averaged; otherwise it is a constant of the model."""
        return self.dtype in FLOATS


@dataclass(frozen=True, slots=True)
class Manifest:
    """The tensors of a model: name, type and shape, sorted by name. What an update is checked against."""

    tensors: tuple[tuple[str, TensorSpec], ...]

    @classmethod
    def of(cls, specs: Mapping[str, TensorSpec]) -> "Manifest":
        """Return the manifest of `specs`."""
        return cls(tuple(sorted(specs.items())))

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Array]) -> "Manifest":
        """Return the manifest of numpy `arrays`.

        Raises:
            TypeNotAveraged: An array is of another type than the module's text lists.
        """
        return cls.of({name: TensorSpec(_type_name(name, array), array.shape) for name, array in arrays.items()})

    def __getitem__(self, name: str) -> TensorSpec:
        return self.specs[name]

    def __contains__(self, name: object) -> bool:
        return name in self.specs

    @property
    def specs(self) -> dict[str, TensorSpec]:
        """Return name → type and shape."""
        return dict(self.tensors)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names, sorted."""
        return tuple(name for name, _ in self.tensors)

    @property
    def floats(self) -> "Manifest":
        """Return the manifest of the averaged tensors: that of every update and mean."""
        return Manifest(tuple(item for item in self.tensors if item[1].is_float))

    @property
    def elements(self) -> int:
        """Return the number of elements of all tensors."""
        return sum(spec.elements for _, spec in self.tensors)

    @property
    def size_bytes(self) -> int:
        """Return the raw size of all tensors."""
        return sum(spec.size_bytes for _, spec in self.tensors)


def windows(spec: TensorSpec, *, widest_bytes: int = 8) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) element ranges that cover a tensor, each at most `WINDOW_BYTES` at `widest_bytes` each."""
    length = WINDOW_BYTES // widest_bytes
    for start in range(0, spec.elements, length):
        yield start, min(start + length, spec.elements)


class TensorFile:
    """A tensor file open for reading; a context manager. Reads are by position, so threads may share it.

    With `keep_open` false the file is open only during a read, for a party that reads from thousands of them.
    """

    def __init__(self, path: Path, *, keep_open: bool = True) -> None:
        self._path: Final = path
        self._descriptor: int | None = None
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._begin, layout, self.metadata = _read_header(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        if keep_open:
            self._descriptor = descriptor
        else:
            os.close(descriptor)
        self._offsets: Final = {name: offset for name, (_, offset) in layout.items()}
        self.manifest: Final = Manifest.of({name: spec for name, (spec, _) in layout.items()})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; again is harmless."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def window(self, name: str, start: int, stop: int) -> Array:
        """Return elements `start` to `stop` of a tensor, flat, read-only, in the file's type.

        Raises:
            TensorFileRefused: The file became shorter.
        """
        dtype = self.manifest[name].numpy
        wanted = (stop - start) * dtype.itemsize
        place = self._begin + self._offsets[name] + start * dtype.itemsize
        if self._descriptor is not None:
            data = os.pread(self._descriptor, wanted, place)
        else:
            with self._path.open("rb") as file:
                data = os.pread(file.fileno(), wanted, place)
        if len(data) != wanted:
            raise TensorFileRefused(f"tensor {name} ends early")
        return np.frombuffer(data, dtype=dtype)

    def read(self, name: str) -> Array:
        """Return a whole tensor in its shape."""
        spec = self.manifest[name]
        return self.window(name, 0, spec.elements).reshape(spec.shape)

    def arrays(self) -> dict[str, Array]:
        """Return all tensors; for models that fit in memory."""
        return {name: self.read(name) for name in self.manifest.names}


class TensorWriter:
    """Writes a tensor file window by window; a context manager.

    The bytes go to a temporary file beside `path`, which is synced and renamed when the block ends well, and removed
    when it ends with an error: `path` never holds a part of a model.
    """

    def __init__(self, path: Path, manifest: Manifest, *, metadata: Mapping[str, str] | None = None) -> None:
        self._path: Final = path
        self._partial: Final = path.with_name(path.name + ".partial")
        self.manifest: Final = manifest
        header, self._offsets = _header(manifest, dict(metadata or {}))
        self._begin: Final = len(header)
        self._specs: Final = manifest.specs
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor: Final = os.open(self._partial, flags, 0o600)
        self._file: Final = os.fdopen(self._descriptor, "wb")
        self._file.write(header)
        self._file.truncate(self._begin + manifest.size_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._file.close()
            self._partial.unlink(missing_ok=True)
            return
        self._file.flush()
        os.fsync(self._descriptor)
        self._file.close()
        self._partial.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def write(self, name: str, start: int, values: Array) -> None:
        """Write flat `values` of the tensor's own type from element `start` on."""
        spec = self._specs[name]
        if values.dtype != spec.numpy or values.ndim != 1 or start + len(values) > spec.elements:
            raise TensorFileRefused(f"tensor {name}: a window of {values.dtype} doesn't fit {spec.dtype}")
        self._file.seek(self._begin + self._offsets[name] + start * spec.numpy.itemsize)
        self._file.write(values.tobytes())


def write_tensors(path: Path, arrays: Mapping[str, Array], *, metadata: Mapping[str, str] | None = None) -> Manifest:
    """Write `arrays` to `path`, durably and whole or not at all, and return their manifest.

    Raises:
        TypeNotAveraged: An array is of a type that is neither averaged nor carried.
    """
    manifest = Manifest.of_arrays(arrays)
    with TensorWriter(path, manifest, metadata=metadata) as writer:
        for name, spec in manifest.tensors:
            flat = np.ascontiguousarray(arrays[name]).reshape(-1).astype(spec.numpy, copy=False)
            for start, stop in windows(spec):
                writer.write(name, start, flat[start:stop])
    return manifest


def _type_name(name: str, array: Array) -> str:
    found = _NAMES.get(array.dtype.newbyteorder("="))
    if found is None:
        raise TypeNotAveraged(name, str(array.dtype))
    return found


def _header(manifest: Manifest, metadata: dict[str, str]) -> tuple[bytes, dict[str, int]]:
    # Widest types first, as safetensors writes them, so that every tensor is aligned to its own width.
    order = sorted(manifest.tensors, key=lambda item: (-item[1].numpy.itemsize, item[0]))
    entries: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    offsets, position = {}, 0
    for name, spec in order:
        end = position + spec.size_bytes
        entries[name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [position, end]}
        offsets[name] = position
        position = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, offsets


def _read_header(descriptor: int) -> tuple[int, dict[str, tuple[TensorSpec, int]], dict[str, str]]:
    size = os.fstat(descriptor).st_size
    length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
        raise TensorFileRefused("not a tensor file: its header is cut or too long")
    try:
        entries = json.loads(os.pread(descriptor, length, 8), object_pairs_hook=_once)
    except (UnicodeDecodeError, ValueError, RecursionError):
        raise TensorFileRefused("not a tensor file: its header is not JSON") from None
    if not isinstance(entries, dict) or len(entries) > MAX_TENSORS + 1:
        raise TensorFileRefused("not a tensor file: its header is no map, or names too many tensors")
    metadata = entries.pop("__metadata__", {})
    layout = {name: _entry(name, entry) for name, entry in entries.items()}
    position = 0
    for spec, offset in sorted(layout.values(), key=lambda item: (item[1], item[0].size_bytes)):
        if offset != position:
            raise TensorFileRefused("tensors overlap, or leave a gap")
        position += spec.size_bytes
    if 8 + length + position != size:
        raise TensorFileRefused(f"the file has {size} bytes, its header says {8 + length + position}")
    good = isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    return 8 + length, layout, metadata if good else {}


def _entry(name: str, entry: Any) -> tuple[TensorSpec, int]:
    if not 0 < len(name) <= MAX_NAME_CHARACTERS or not name.isprintable():
        raise TensorFileRefused(f"a tensor's name is empty, not printable or over {MAX_NAME_CHARACTERS} characters")
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise TensorFileRefused(f"tensor {name}: dtype, shape and data_offsets are wanted")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not (_naturals(shape) and len(shape) <= MAX_DIMENSIONS and _naturals(offsets) and len(offsets) == 2):
        raise TensorFileRefused(f"tensor {name}: its shape or its place is malformed")
    if not isinstance(dtype, str) or dtype not in _NUMPY:
        raise TypeNotAveraged(name, str(dtype)[:16])
    spec = TensorSpec(dtype, tuple(shape))
    if offsets[1] - offsets[0] != spec.size_bytes:
        raise TensorFileRefused(f"tensor {name}: {offsets[1] - offsets[0]} bytes, its shape needs {spec.size_bytes}")
    return spec, offsets[0]


def _naturals(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**48 for value in values)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key stands twice")
    return result
