"""Write a job's result into a folder, and verify such a folder without a network.

What a folder proves: the coordinator whose key is named signed a chain of releases for this plan, and the model in
the folder is the last of them, bit for bit. It doesn't prove that the means were right; the sites checked each step.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coordinator.api_client import Federation
from coordinator.result_documents import model_card, privacy_facts, provenance
from federation import contract as contracts
from federation import messages
from federation import plan as plans
from federation.edge.files import make_folder, read_input, write_whole
from federation.errors import CheckFailed, ConfideError, InvalidInput
from federation.identity import check_signature
from federation.link.chunks import reference_of

MODEL: Final = "model.safetensors"
STATE: Final = "server_state.safetensors"
RELEASES: Final = "proofs/releases.jsonl"
PLAN: Final = "proofs/plan.json"
CONTRACT: Final = "proofs/contract.json"
PROVENANCE: Final = "provenance.json"
PRIVACY: Final = "privacy.json"
CARD: Final = "model-card.md"
_LIMIT: Final = 64 << 20


def write_result(federation: Federation, job: str, folder: Path) -> tuple[Path, ...]:
    """Write the result of `job` into `folder`, verify it there, and return the paths written.

    Raises:
        InvalidInput: The folder isn't empty; nothing was written.
        CheckFailed: What the coordinator handed out doesn't verify; the files stay for inspection.
    """
    if folder.exists() and any(folder.iterdir()):
        raise InvalidInput("CFD-J20", f"{folder} is not empty", hint="name a new folder")
    found = federation.result(job)
    view, key = federation.job(job), federation.identity()
    plan_bytes, contract_bytes = federation.plan_bytes(job), federation.contract_bytes(job)
    for part in (folder, folder / "proofs"):
        make_folder(part)
    for file in found.files:
        if file.name not in (MODEL, STATE):
            continue  # a later version's file: nothing here depends on it
        federation.download(job, file.name, folder / file.name)
    write_whole(folder / PLAN, plan_bytes)
    write_whole(folder / CONTRACT, contract_bytes)
    lines = "".join(json.dumps(item, sort_keys=True) + "\n" for item in found.releases)
    write_whole(folder / RELEASES, lines.encode())
    plan, contract = plans.decode(plan_bytes), contracts.from_canonical(contract_bytes)
    facts = privacy_facts(plan, view)
    write_whole(folder / PRIVACY, _document(facts))
    write_whole(folder / CARD, model_card(plan, view, facts, contracts.feature_names(contract)).encode())
    files = {name: _sha256(folder / name) for name in _listed(folder)}
    origin = provenance(
        plan, view, identity=key, contract_digest=contracts.digest(contract), version=_version(), files=files
    )
    write_whole(folder / PROVENANCE, _document(origin))
    verify_result(folder)
    return tuple(sorted(path for path in folder.rglob("*") if path.is_file()))


def _listed(folder: Path) -> list[str]:
    names = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in names if name != PROVENANCE)


def _document(value: Any) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _sha256(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("confide")
    except PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True, slots=True)
class Verified:
    """What a folder proves."""

    job: str
    plan: str
    model: str
    rounds: int
    coordinator_identity: bytes


def verify_result(folder: Path) -> Verified:
    """Return what the result in `folder` proves.

    Raises:
        InvalidInput: The folder is no result.
        CheckFailed: Something in it contradicts something else; the message names it.
    """
    origin = _read_json(folder, PROVENANCE)
    if origin.get("schema") != "confide/provenance/v1":
        raise InvalidInput("CFD-J25", f"{folder} holds no result that this version reads")
    _check_files(folder, origin)
    plan_bytes = read_input(folder / PLAN, limit_bytes=_LIMIT)
    plan = plans.decode(plan_bytes)
    digest = hashlib.sha256(plan_bytes).hexdigest()
    contract = contracts.from_canonical(read_input(folder / CONTRACT, limit_bytes=_LIMIT))
    _agree("the plan's digest", digest, origin.get("plan"))
    _agree("the contract's digest", contracts.digest(contract), plan.data.contract_digest)
    key = _hex(str(origin.get("coordinator_identity", "")), "the coordinator's key")
    last = _check_chain(folder, key, digest, str(origin.get("job")))
    _check_model(folder, last)
    return Verified(last.job, digest, last.model, last.step, key)


def _check_files(folder: Path, origin: dict[str, Any]) -> None:
    listed = origin.get("files")
    if not isinstance(listed, dict) or MODEL not in listed:
        raise CheckFailed("CFD-J25", f"{PROVENANCE} lists no {MODEL}")
    present = set(_listed(folder))
    for name in sorted(present ^ set(listed)):
        raise CheckFailed("CFD-J25", f"{name} is {'not listed in provenance.json' if name in present else 'missing'}")
    for name in sorted(present):  # only names that were found in the folder are opened
        _agree(f"the hash of {name}", _sha256(folder / name), listed[name])


def _check_chain(folder: Path, key: bytes, plan_digest: str, job: str) -> messages.Release:
    previous: messages.BlobReference | None = None
    last: messages.Release | None = None
    for number, line in enumerate(read_input(folder / RELEASES, limit_bytes=_LIMIT).splitlines()):
        where = f"release {number} in {RELEASES}"
        try:
            item = json.loads(line)
            record, signature = bytes.fromhex(item["record"]), bytes.fromhex(item["signature"])
            check_signature(key, "release", record, signature)
            release = messages.decode_body("release", record)
        except (ValueError, KeyError, TypeError) as error:
            raise CheckFailed("CFD-J25", f"{where} can't be read ({type(error).__name__})") from None
        except ConfideError:
            raise CheckFailed("CFD-J25", f"{where} isn't signed by the coordinator's key") from None
        if not isinstance(release, messages.Release):
            raise CheckFailed("CFD-J25", f"{where} is no release")
        _agree(f"{where}: job", release.job, job)
        _agree(f"{where}: plan", release.plan_digest, plan_digest)
        _agree(f"{where}: step", release.step, number)
        _agree(f"{where}: the release before it", release.previous, previous)
        previous, last = reference_of(record), release
    if last is None:
        raise CheckFailed("CFD-J25", f"{RELEASES} is empty")
    return last


def _check_model(folder: Path, last: messages.Release) -> None:
    from federation.tensors import state_digest

    state = folder / STATE
    found = state_digest(folder / MODEL, state if state.exists() else None, step=last.step)
    _agree("the model's digest", found, last.model)


def _agree(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise CheckFailed("CFD-J25", f"{what} differs: found {str(found)[:80]}, expected {str(expected)[:80]}")


def _hex(text: str, what: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise CheckFailed("CFD-J25", f"{what} is not hexadecimal") from None


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    try:
        value = json.loads(read_input(folder / name, limit_bytes=_LIMIT))
    except (ValueError, RecursionError):
        raise InvalidInput("CFD-J25", f"{folder / name} is not JSON") from None
    if not isinstance(value, dict):
        raise InvalidInput("CFD-J25", f"{folder / name} is no document of a result")
    return value
