"""Blobs: how they are named, kept, received in part, and found again after a crash."""

import errno
import hashlib
import itertools
import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.errors import InvalidInput, OutOfOrder, PeerMisbehaved
from federation.link.blobs import BlobStore
from federation.link.chunks import CHUNK_BYTES, BlobHasher, chunk_count, chunk_span, reference_of, root_of
from federation.messages import BlobReference

THREE = b"a" * CHUNK_BYTES + b"b" * CHUNK_BYTES + b"c" * 7


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def parts(data: bytes) -> tuple[BlobReference, bytes, list[bytes]]:
    """Return reference, hashes and chunks of `data`, made here by the definition."""
    chunks = [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]
    hashes = b"".join(hashlib.sha256(chunk).digest() for chunk in chunks)
    root = hashlib.sha256(b"confide-blob/v1\n" + len(data).to_bytes(8, "big") + hashes).hexdigest()
    return BlobReference(root=root, size_bytes=len(data)), hashes, chunks


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES])
def test_a_reference_is_what_the_definition_says(size: int) -> None:
    data = os.urandom(size)
    assert reference_of(data) == parts(data)[0]
    assert chunk_count(size) == len(parts(data)[2])


@given(cuts=st.lists(st.integers(0, 3 * CHUNK_BYTES), max_size=8))
def test_the_root_does_not_depend_on_how_the_bytes_come(cuts: list[int]) -> None:
    hasher = BlobHasher()
    edges = [0, *sorted(cut for cut in cuts if cut < len(THREE)), len(THREE)]
    for start, end in itertools.pairwise(edges):
        hasher.update(THREE[start:end])
    assert hasher.finish() == parts(THREE)[:2]


def test_blobs_of_other_size_have_other_roots_even_with_the_same_hashes() -> None:
    hashes = hashlib.sha256(b"x").digest()
    assert root_of(1, hashes) != root_of(2, hashes)


def test_hashes_of_another_number_have_no_root() -> None:
    with pytest.raises(ValueError, match="64 bytes of chunk hashes for 1 chunks"):
        root_of(5, bytes(64))


def test_a_chunk_that_a_blob_hasnt_has_no_span() -> None:
    assert chunk_span(2, len(THREE)) == (2 * CHUNK_BYTES, 7)
    with pytest.raises(IndexError):
        chunk_span(3, len(THREE))
    with pytest.raises(IndexError):
        chunk_span(-1, len(THREE))


def test_what_is_put_is_found_under_its_reference(store: BlobStore, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(THREE)
    reference = store.put_file(source)
    assert reference == reference_of(THREE) == store.put_bytes(THREE)
    assert store.path(reference).read_bytes() == THREE
    assert source.read_bytes() == THREE
    assert store.hashes(reference) == parts(THREE)[1]
    assert list(store.read_chunks(reference, 1)) == parts(THREE)[2][1:]
    assert list(store.references()) == [reference]


@pytest.mark.parametrize("data", [b"", b"small", THREE], ids=["empty", "one chunk", "three chunks"])
def test_an_adopted_file_becomes_the_blob_and_leaves_its_place(store: BlobStore, tmp_path: Path, data: bytes) -> None:
    source = tmp_path / "source"
    source.write_bytes(data)
    source.chmod(0o644)
    inode = source.stat().st_ino
    reference = store.adopt_file(source)
    path = store.path(reference)
    assert not source.exists()
    assert (path.read_bytes(), path.stat().st_ino, path.stat().st_mode & 0o777) == (data, inode, 0o600)
    assert BlobStore(store.folder).hashes(reference) == parts(data)[1]


def test_a_file_of_another_file_system_is_copied_and_removed(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.write_bytes(THREE)

    def refuse(self: Path, target: Path) -> Path:
        raise OSError(errno.EXDEV if self == source else errno.EIO, "elsewhere")

    with monkeypatch.context() as patched:
        rename = Path.rename
        patched.setattr(Path, "rename", lambda self, target: (refuse if self == source else rename)(self, target))
        reference = store.adopt_file(source)
    assert store.path(reference).read_bytes() == THREE
    assert not source.exists()


def test_files_and_folders_are_for_their_owner_only(store: BlobStore) -> None:
    path = store.path(store.put_bytes(THREE))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert store.folder.stat().st_mode & 0o777 == 0o700


def test_a_writer_that_is_left_early_leaves_nothing(store: BlobStore) -> None:
    with pytest.raises(RuntimeError), store.writer() as writer:  # noqa: PT012 (the fault is inside)
        writer.write(b"half")
        raise RuntimeError
    assert [path for path in store.folder.rglob("*") if path.is_file()] == []


def test_what_a_killed_process_was_writing_is_removed_at_the_next_start(store: BlobStore) -> None:
    writer = store.writer()
    writer.write(b"half")
    BlobStore(store.folder)
    assert [path for path in store.folder.rglob("*") if path.is_file()] == []


def test_a_removed_blob_is_gone_and_may_be_removed_again(store: BlobStore) -> None:
    reference = store.put_bytes(THREE)
    store.remove(reference)
    store.remove(reference)
    assert not store.has(reference)
    with pytest.raises(OutOfOrder) as refused:
        store.path(reference)
    assert refused.value.code == "CFD-L20"
    assert [path for path in store.folder.rglob("*") if path.is_file()] == []


def test_a_reference_with_another_size_finds_nothing(store: BlobStore) -> None:
    reference = store.put_bytes(THREE)
    assert not store.has(reference.model_copy(update={"size_bytes": 5}))


def test_lost_hashes_are_made_again_and_changed_bytes_are_noticed(store: BlobStore) -> None:
    reference = store.put_bytes(THREE)
    path = store.path(reference)
    sidecar = path.with_name(path.name + ".hashes")
    for damage in (sidecar.unlink, lambda: sidecar.write_bytes(b"x" * 32)):
        damage()
        assert store.hashes(reference) == parts(THREE)[1]
    sidecar.unlink()
    path.write_bytes(b"x" * len(THREE))
    with pytest.raises(OutOfOrder) as refused:
        store.hashes(reference)
    assert refused.value.code == "CFD-L21"


# --- arriving -------------------------------------------------------------------------------------------------


def test_a_blob_arrives_chunk_by_chunk_and_is_there_at_the_end_only(store: BlobStore) -> None:
    reference, hashes, chunks = parts(THREE)
    staging = store.open_staging(reference, hashes)
    for index, chunk in enumerate(chunks):
        assert store.staged_chunks(reference) == index
        assert not store.has(reference)
        staging.append(index, memoryview(chunk))
    assert staging.complete().read_bytes() == THREE
    assert staging.complete() == store.path(reference)
    assert store.staged_chunks(reference) == 3
    assert store.staged_bytes("self") == 0


def test_a_staging_goes_on_after_a_restart_at_its_last_good_chunk(store: BlobStore) -> None:
    reference, hashes, chunks = parts(THREE)
    staging = store.open_staging(reference, hashes)
    staging.append(0, chunks[0])
    staging.append(1, chunks[1])
    after = BlobStore(store.folder)
    assert after.staged_chunks(reference) == 2
    again = after.open_staging(reference, hashes)
    again.append(2, chunks[2])
    assert again.complete().read_bytes() == THREE


@pytest.mark.parametrize("damage", ["torn", "zeroed", "longer"])
def test_bytes_that_a_crash_spoilt_are_not_kept(store: BlobStore, damage: str) -> None:
    reference, hashes, chunks = parts(THREE)
    staging = store.open_staging(reference, hashes)
    for index, chunk in enumerate(chunks):
        staging.append(index, chunk)
    path = store.folder / "staging" / "self" / reference.root
    with path.open("r+b") as stream:
        if damage == "torn":
            stream.truncate(CHUNK_BYTES + 5)
        elif damage == "zeroed":
            stream.seek(CHUNK_BYTES)
            stream.write(bytes(CHUNK_BYTES))
        else:
            stream.truncate(2 * CHUNK_BYTES + 3)
            stream.seek(0, os.SEEK_END)
            stream.write(b"x" * 100)
    after = BlobStore(store.folder)
    good = 2 if damage == "longer" else 1
    assert after.staged_chunks(reference) == good
    again = after.open_staging(reference, hashes)
    for index in range(good, 3):
        again.append(index, chunks[index])
    assert again.complete().read_bytes() == THREE


def test_a_wrong_chunk_is_refused_and_changes_nothing(store: BlobStore) -> None:
    reference, hashes, chunks = parts(THREE)
    staging = store.open_staging(reference, hashes)
    staging.append(0, chunks[0])
    for wrong in (chunks[0], chunks[1][:-1], chunks[1] + b"x", b""):
        with pytest.raises(PeerMisbehaved) as refused:
            staging.append(1, wrong)
        assert refused.value.code == "CFD-L24"
    with pytest.raises(PeerMisbehaved):
        staging.append(3, b"")
    with pytest.raises(OutOfOrder):
        staging.append(0, chunks[0])
    with pytest.raises(OutOfOrder):
        staging.append(2, chunks[2])
    with pytest.raises(OutOfOrder):
        staging.complete()
    assert staging.chunks == 1


def test_hashes_that_dont_lead_to_the_root_are_refused_before_anything_is_written(store: BlobStore) -> None:
    reference, hashes, _ = parts(THREE)
    for wrong in (hashes[:-32], hashes[::-1], hashes + hashes[:32], b""):
        with pytest.raises(PeerMisbehaved) as refused:
            store.open_staging(reference, wrong)
        assert refused.value.code == "CFD-L23"
    assert [path for path in store.folder.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("owner", ["", "..", "a/b", "a\0b", "."])
def test_an_owner_that_could_leave_the_folder_is_refused(store: BlobStore, owner: str) -> None:
    reference, hashes, _ = parts(THREE)
    with pytest.raises(InvalidInput):
        store.open_staging(reference, hashes, owner=owner)


def test_stagings_of_different_owners_never_meet(store: BlobStore) -> None:
    reference, hashes, chunks = parts(THREE)
    store.open_staging(reference, hashes, owner="cleveland").append(0, chunks[0])
    assert store.staged_chunks(reference, owner="hungary") == 0
    assert store.staged_bytes("cleveland") == len(THREE)
    assert store.staged_bytes("hungary") == 0


def test_an_upload_that_nobody_finishes_is_gone_after_its_time_and_begins_anew(store: BlobStore) -> None:
    reference, hashes, chunks = parts(THREE)
    staging = store.open_staging(reference, hashes)
    staging.append(0, chunks[0])
    assert store.discard_untouched(time.time() - 3600) == 0
    assert store.staged_bytes("self") == len(THREE)
    assert store.discard_untouched(time.time() + 3600) == 1
    assert store.discard_untouched(time.time() + 3600) == 0
    assert store.staged_bytes("self") == 0
    with pytest.raises(OutOfOrder):
        staging.append(1, chunks[1])
    assert store.staged_chunks(reference) == 0
    assert store.open_staging(reference, hashes).chunks == 0


def test_two_transfers_of_one_blob_keep_each_chunk_once(store: BlobStore) -> None:
    data = os.urandom(20 * CHUNK_BYTES)
    reference, hashes, chunks = parts(data)
    overtaken = []

    def carry() -> None:
        staging = store.open_staging(reference, hashes)
        for index in range(staging.chunks, len(chunks)):
            try:
                staging.append(index, chunks[index])
            except OutOfOrder as problem:
                overtaken.append(problem.code)
                return

    threads = [threading.Thread(target=carry) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    staging = store.open_staging(reference, hashes)
    for index in range(staging.chunks, len(chunks)):
        staging.append(index, chunks[index])
    assert staging.complete().read_bytes() == data
    assert set(overtaken) <= {"CFD-L25"}


def test_an_unsynced_blob_is_believed_after_a_restart_only_if_its_bytes_are_right(store: BlobStore) -> None:
    for spoilt in (False, True):
        data = THREE + bytes([spoilt])
        reference, hashes, chunks = parts(data)
        staging = store.open_staging(reference, hashes)
        for index, chunk in enumerate(chunks):
            staging.append(index, chunk)
        path = staging.complete(durable=False)
        assert store.hashes(reference) == hashes
        if spoilt:
            path.write_bytes(bytes(len(data)))
        assert BlobStore(store.folder).has(reference) is not spoilt
    assert len(list(BlobStore(store.folder).references())) == 1


def test_a_blob_that_is_made_durable_later_is_no_longer_in_doubt(store: BlobStore) -> None:
    reference, hashes, chunks = parts(THREE)
    staging = store.open_staging(reference, hashes)
    for index, chunk in enumerate(chunks):
        staging.append(index, chunk)
    staging.complete(durable=False)
    assert store.put_bytes(THREE) == reference
    assert list(store.folder.rglob("*.unsynced")) == []
    store.remove(reference)
    assert [path for path in store.folder.rglob("*") if path.is_file()] == []
