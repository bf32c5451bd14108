"""The configuration of a process: one YAML file makes one frozen model; the only reader of the environment.

Rules: a key that no model has is refused, with the nearest one suggested; every value has its type and its limits in
the model, and a unit in its name; a secret is named by the path of its file, never written here. A variable
`CONFIDE__SECTION__KEY` overrides a key of the file. The home is `--home`, else `CONFIDE_HOME`, else the place that
the XDG base directory specification gives. Relative paths in a file are relative to the file's folder.
"""

import json
import os
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from federation.edge.documents import MAX_DOCUMENT_BYTES, DocumentUnreadable, Parsed, describe, parse_yaml
from federation.edge.files import read_bytes
from federation.errors import ConfigurationWrong

Role = Literal["coordinator", "site"]
OVERRIDE_PREFIX: Final = "CONFIDE__"
_AROUND: Final = "\ufeff \t\r\n"  # what Windows editors and shells leave around a value


class Settings(BaseModel):
    """A part of a configuration: frozen, unknown keys refused, no guessing of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


M = TypeVar("M", bound=Settings)


def environment() -> Mapping[str, str]:
    """Return this process's environment; everything else takes it as an argument."""
    return os.environ  # noqa: TID251 (the edge that the ban points to)


def set_variables(values: Mapping[str, str]) -> None:
    """Set environment variables of this process, which its children inherit; for switches that libraries read."""
    os.environ.update(values)  # noqa: TID251 (the edge that the ban points to)


def resolve_home(role: Role, flag: str | None, *, variables: Mapping[str, str] | None = None) -> Path:
    """Return the home of `role`: `flag`, else ``CONFIDE_HOME``, else the XDG place.

    Works for an account without an entry in the account table and without ``HOME``, as long as one of the first two is
    given.

    Raises:
        ConfigurationWrong: None of the three says where.
    """
    found = environment() if variables is None else variables
    named = flag or found.get("CONFIDE_HOME")
    if named:
        return Path(named).expanduser().absolute()
    data = found.get("XDG_DATA_HOME", "")
    if data.startswith("/"):  # a relative one is to be ignored, says the specification
        return Path(data) / "confide" / role
    if not found.get("HOME"):
        raise ConfigurationWrong(
            "CFD-C01",
            "no home for the program: HOME, XDG_DATA_HOME and CONFIDE_HOME are not set",
            hint="give --home DIR",
        )
    return Path(found["HOME"]) / ".local" / "share" / "confide" / role


def load_configuration(model: type[M], path: Path, *, variables: Mapping[str, str] | None = None) -> M:
    """Return the configuration in the file `path`, with the environment's overrides.

    Raises:
        ConfigurationWrong: Not readable, not YAML, an unknown key, or a value that is not allowed. All problems of the
            values are named at once.
    """
    parsed = _parsed(read_bytes(path, limit_bytes=MAX_DOCUMENT_BYTES), str(path))
    for keys, value in _overrides(environment() if variables is None else variables):
        _put(parsed.value, keys, value)
    try:
        # By way of JSON, since YAML has lists where a strict model wants tuples, as JSON has.
        return model.model_validate_json(json.dumps(parsed.value))
    except ValidationError as problem:
        message, hint = describe(problem, model, parsed)
        unknown = any(error["type"] == "extra_forbidden" for error in problem.errors(include_input=False))
        raise ConfigurationWrong("CFD-C03" if unknown else "CFD-C04", f"{path}: {message}", hint=hint) from None


def from_folder(path: Path, named: Path) -> Path:
    """Return the path that the configuration file `path` means by `named`."""
    return path.parent / named.expanduser()


def _parsed(content: bytes, name: str) -> Parsed:
    try:
        parsed = parse_yaml(content)
    except DocumentUnreadable as problem:
        raise ConfigurationWrong("CFD-C02", f"{name}: {problem.place}{problem.problem}", hint=problem.hint) from None
    if not isinstance(parsed.value, dict):
        raise ConfigurationWrong("CFD-C02", f"{name}: the file must hold keys and values")
    return parsed


def _overrides(variables: Mapping[str, str]) -> list[tuple[tuple[str, ...], Any]]:
    found = []
    for name in sorted(variables):
        if name.startswith(OVERRIDE_PREFIX):
            keys = tuple(part.lower() for part in name.removeprefix(OVERRIDE_PREFIX).split("__"))
            value = _parsed(b"value: " + variables[name].strip(_AROUND).encode("utf-8"), f"the variable {name}")
            found.append((keys, value.value["value"]))
    return found


def _put(tree: dict[str, Any], keys: tuple[str, ...], value: Any) -> None:
    place = tree
    for key in keys[:-1]:
        inner = place.get(key)
        if not isinstance(inner, dict):
            inner = place[key] = {}
        place = inner
    place[keys[-1]] = value


def commented_yaml(settings: Settings, *, title: str) -> str:
    """Return a configuration file with the values of `settings` and each field's description as a comment.

    A value that is the default is commented out (``#key: value``), so that a later default takes effect.
    """
    lines = [
        f"# {title}",
        "# A line `#key: value` shows a default; remove the # (also that of its section) to set it.",
        "",
    ]
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        inner = _section(value) if isinstance(value, Settings) else None
        if inner is None:
            lines += [*_comment(field, ""), _assignment(name, value, field, ""), ""]
        else:
            unset = all(line.startswith("#") for line in inner)
            lines += [*_comment(field, ""), f"{'#' if unset else ''}{name}:", *inner, ""]
    return "\n".join(lines).rstrip() + "\n"


def _section(settings: Settings) -> list[str]:
    lines: list[str] = []
    for name, field in type(settings).model_fields.items():
        lines += [*_comment(field, "  "), _assignment(name, getattr(settings, name), field, "  ")]
    return lines


def _comment(field: FieldInfo, indent: str) -> list[str]:
    return textwrap.wrap(
        field.description or "",
        110,
        initial_indent=f"#{indent} ",
        subsequent_indent=f"#{indent} ",
        break_on_hyphens=False,
    )


def _assignment(name: str, value: Any, field: FieldInfo, indent: str) -> str:
    plain = value.model_dump(mode="json") if isinstance(value, Settings) else json.loads(json.dumps(value, default=str))
    text = yaml.safe_dump(plain, default_flow_style=True, sort_keys=False, width=4096, allow_unicode=True)
    text = text.removesuffix("\n").removesuffix("\n...")
    is_default = not field.is_required() and value == field.get_default(call_default_factory=True)
    return f"{'#' if is_default else ''}{indent}{name}: {text}"


def effective(settings: Settings) -> dict[str, Any]:
    """Return the whole configuration as plain values for `check`; it holds no secret, since files hold those."""
    plain: dict[str, Any] = settings.model_dump(mode="json")
    return plain
