# SPDX-License-Identifier: Apache-2.0
"""Holds a value against a schema of docs/api/openapi.json: as much of JSON Schema as that document uses."""

import json
import pathlib

FILE = pathlib.Path(__file__).resolve().parents[2] / "docs/api/openapi.json"
TYPES = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "object": dict, "array": list,
         "null": type(None)}


def load():
    return json.loads(FILE.read_text())


def wrong(document, schema, value, where="$"):
    """What does not fit, as a list of texts. Members that the schema does not name count as wrong."""
    if "$ref" in schema:
        return wrong(document, document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]], value, where)
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    is_bool = isinstance(value, bool)
    if kinds and not any(isinstance(value, TYPES[k]) and is_bool == (k == "boolean") for k in kinds):
        return [f"{where}: {value!r} is not {' or '.join(kinds)}"]
    found = []
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{where}: {value!r} is not one of {schema['enum']}")
    if isinstance(value, dict) and "properties" in schema:
        found += [f"{where}: {name} is missing" for name in schema.get("required", []) if name not in value]
        for name, member in value.items():
            if name not in schema["properties"]:
                found.append(f"{where}: {name} is not described")
            else:
                found += wrong(document, schema["properties"][name], member, f"{where}.{name}")
    if isinstance(value, list) and "items" in schema:
        for i, item in enumerate(value):
            found += wrong(document, schema["items"], item, f"{where}[{i}]")
    return found


def check(document, method, path, status, value):
    """The answer of an operation; AssertionError tells what is wrong with it."""
    answers = document["paths"][path][method.lower()]["responses"]
    answer = answers.get(str(status), answers["default"])
    for media, content in answer.get("content", {}).items():
        if media.endswith("json"):
            assert not (bad := wrong(document, content["schema"], value)), (method, path, status, bad)
            return
    assert value is None or not isinstance(value, dict), (method, path, status, "has a body that is not described")
