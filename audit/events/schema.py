"""The JSON Schema of all events, made from the models; `v1.json` beside this file is its shipped form."""

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

from pydantic import create_model
from pydantic.json_schema import models_json_schema

from audit.canonical import sha256
from audit.events import ACTIONS, Committed

SHIPPED: Final = Path(__file__).with_name("v1.json")


def _without_titles(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: _without_titles(value) for key, value in schema.items() if key != "title"}
    return [_without_titles(value) for value in schema] if isinstance(schema, list) else schema


def made_from_models() -> bytes:
    """Return the schema of a whole event, draft and committer's fields, as indented JSON."""
    entries = [
        create_model(f"{model.__name__}Entry", __base__=(model, Committed), __doc__=model.__doc__)
        for model in ACTIONS.values()
    ]
    references, shared = models_json_schema([(entry, "validation") for entry in entries], by_alias=True)
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Events of the Confide audit log, version 1",
        "oneOf": [references[entry, "validation"] for entry in entries],
        **_without_titles(shared),  # they only repeat the names of fields
    }
    return (json.dumps(schema, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


@cache
def shipped_hash() -> str:
    """Return the hash of the shipped schema, which `log.opened` and `log.booted` record."""
    return sha256(SHIPPED.read_bytes())
