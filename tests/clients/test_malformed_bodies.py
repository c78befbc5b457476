"""Sends malformed and extreme bodies to every route that accepts a body. Each gets a response quickly, never a 5xx, and
errors have the documented format. `test_fuzz.py` does not generate such bodies."""

import time

import pytest
from error_format import format_problem

DEEP = 10_000
JSON = {"content-type": "application/json"}

# JSON texts, because a JSON library cannot write most of these values.
VALUES = {
    "deep arrays": "[" * DEEP + "]" * DEEP,
    "deep objects": '{"a":' * DEEP + "1" + "}" * DEEP,
    "deep and not closed": '[{"a":' * DEEP,
    "1e400": "1e400",
    "-1e400": "-1e400",
    "1e-400": "1e-400",
    "401 digits": "1" + "0" * 400,
    "100,000 digits": "9" * 100_000,
    "beyond 64 bits": "18446744073709551616",
    "below 64 bits": "-9223372036854775809",
    "-0": "-0",
    "NaN": "NaN",
    "a lone surrogate": '"\\ud800"',
    "surrogates in the invalid order": '"\\udc00\\ud800"',
    "NUL": '"a\\u0000b"',
    "a raw NUL": '"a\x00b"',
    "control characters": '"\\u001b[2J\\r\\n\\u202e"',
    "many letters": '"' + "a" * 100_000 + '"',
    "many accents": '"' + "e" + "\u0301" * 10_000 + '"',
    "an empty text": '""',
    "many entries": "[" + "0," * 9_999 + "0]",
    "many fields": "{" + ",".join(f'"{i}":0' for i in range(10_000)) + "}",
    "a lone surrogate as a name": '{"\\ud800": 1}',
    "null": "null",
    "true": "true",
}
# Too long to be sent for every field at every nesting depth.
LONG = {
    "a million letters": '"' + "a" * 1_000_000 + '"',
    "a million words": '"' + "ab " * 333_333 + '"',
    "a million entries": "[" + "0," * 999_999 + "0]",
}
BODIES = {
    **VALUES,
    **LONG,
    "nothing": "",
    "a blank": " ",
    "a byte order mark": "\ufeff{}",
    "half an object": '{"name": ',
    "two objects": "{} {}",
    "a comment": "{} // no",
    "a trailing comma": '{"name": "x",}',
}
TYPES = ["text/plain", "application/xml", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
TYPES += ["application/json; charset=utf-16", "application/json, text/html", "application/", "json", ""]


def operations(document):
    """`(method, path, schema of the body or None)` of every route under the mounts that may accept a body."""
    for path, item in document["paths"].items():
        if not path.startswith(("/v1/", "/openai/v1/", "/api/")):
            continue
        for method, operation in item.items():
            content = operation.get("requestBody", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema")
            if schema or method in ("post", "put", "patch"):
                yield method.upper(), path, schema


LIMITS = ["max_tokens", "max_completion_tokens", "max_output_tokens", "options", "num_predict", "n_predict"]
SCHEMA = '{"enum": ["x"]}'
# Values of fields that allow only a short text: of Ollama's API, of the Responses API and of llama.cpp's.
BOUNDED = {"stop": '[" ", "e", "a", "o", "1", "0"]', "format": SCHEMA, "text": '{"format": {"type": "json_schema", "name": "x", "schema": ' + SCHEMA + "}}"}


class BodyGenerator:
    """Generates bodies from their schemas, valid ones and ones with a single invalid value."""

    def __init__(self, document, chat_model, ids):
        self.document, self.chat_model, self.ids = document, chat_model, ids

    def resolve(self, schema):
        while "$ref" in schema:
            schema = self.document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
        return schema

    def example(self, schema, name=""):
        """The JSON text of a valid value."""
        schema = self.resolve(schema)
        if self.is_bounded(name, schema):
            return BOUNDED[name]
        if name in self.ids or name == "model":
            return f'"{self.ids.get(name, self.chat_model)}"'
        for choice in schema.get("oneOf", schema.get("anyOf", [])):
            return self.example(choice, name)
        if "enum" in schema:
            # The template adds a system turn to a conversation that does not begin with one.
            return '"system"' if "system" in schema["enum"] else f'"{schema["enum"][0]}"'
        kind = schema.get("type", "object")
        kind = kind[0] if isinstance(kind, list) else kind
        if kind == "object":
            return self.object({field: self.example(value, field) for field, value in self.required(schema).items()})
        if kind == "array":
            return f"[{self.example(schema.get('items', {'type': 'string'}))}]"
        return {"string": '"x"', "integer": "1", "number": "1", "boolean": "false"}.get(kind, "null")

    @staticmethod
    def is_bounded(name, schema):
        return name in BOUNDED and "string" not in schema.get("type", [])

    def required(self, schema):
        properties = schema.get("properties", {})
        # The server requires model and content in more cases than the schema. Each chat has two limits that keep it short,
        # so one of them can be invalid.
        names = {*schema.get("required", []), *({"model", "content", *LIMITS} & properties.keys())}
        names |= {name for name, value in properties.items() if self.is_bounded(name, self.resolve(value))}
        return {name: value for name, value in properties.items() if name in names}

    @staticmethod
    def object(fields):
        return "{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}"

    def with_one_invalid_field(self, schema, depth):
        """`(description, text)` of bodies with each invalid value in each field, down to a nesting depth."""
        schema = self.resolve(schema)
        for choice in schema.get("oneOf", schema.get("anyOf", [])):
            yield from self.with_one_invalid_field(choice, depth)
        if "items" in schema and depth:
            yield from ((what + " in an array", f"[{text}]") for what, text in self.with_one_invalid_field(schema["items"], depth - 1))
        if "properties" not in schema:
            return
        valid = {name: self.example(value, name) for name, value in self.required(schema).items()}
        for field, inner in schema["properties"].items():
            invalid = [*VALUES.items(), *(self.with_one_invalid_field(inner, depth - 1) if depth else LONG.items())]
            yield from ((f"{what} as {field}", self.object({**valid, field: value})) for what, value in invalid)
        for field, value in valid.items():
            yield f"{field} twice", self.object(valid)[:-1] + f', "{field}": {value}' + "}"
        yield "an unknown field", self.object({**valid, "x" * 100_000: "1"})


@pytest.fixture(scope="module")
def document(fuzz_server):
    with fuzz_server.http() as http:
        return http.get("/openapi.json").json()


class ResourcePaths:
    """Paths of existing resources. Each resource is created by a POST to its collection."""

    def __init__(self, http, document, chat_model):
        self.http, self.chat_model = http, chat_model
        self.bodies = BodyGenerator(document, chat_model, {})
        self.schemas = {path: schema for method, path, schema in operations(document) if method == "POST" and schema}
        # Each route gets its own project, because some routes archive it.
        self.bodies.ids["project_id"] = self.create("/v1/projects")

    def create(self, collection):
        if collection not in self.schemas:
            return self.chat_model
        response = self.http.post(collection, content=self.bodies.example(self.schemas[collection]), headers=JSON)
        return response.json()["id"] if response.status_code == 200 else "0"

    def resolve_path(self, path):
        done = []
        for part in path.split("/"):
            if part == "{project_id}":
                part = self.bodies.ids["project_id"]
            done.append(self.create("/".join(done)) if part.startswith("{") else part)
        return "/".join(done)


def check(http, method, path, what, body, headers=JSON):
    began = time.monotonic()
    content = body if isinstance(body, bytes) else body.encode(errors="surrogatepass")
    response = http.request(method, path, content=content, headers=headers)
    elapsed = time.monotonic() - began
    summary = f"{method} {path}, {what}: {response.status_code} in {elapsed:.1f} s: {response.text[:300]}"
    assert response.status_code < 500, summary
    assert response.headers["x-request-id"].startswith("req_"), summary
    if response.status_code >= 400:
        assert format_problem(response) is None, f"{summary} ({format_problem(response)})"
    assert elapsed < 10, summary
    return response


def test_malformed_bodies_get_an_error_response(fuzz_server, document):
    count = 0
    with fuzz_server.http() as http:
        for method, path, schema in operations(document):
            paths = ResourcePaths(http, document, fuzz_server.chat_model)
            # Both mounts have the same handlers. One gets nested values, the other long ones.
            invalid = paths.bodies.with_one_invalid_field(schema, 3 if path.startswith("/v1/") else 0) if schema else []
            path = paths.resolve_path(path)
            for what, body in [*BODIES.items(), *invalid]:
                check(http, method, path, what, body)
                count += 1
        assert http.get("/healthz").status_code == 200
    assert count > 2000
    print(f"{count} bodies")


def test_unexpected_content_types_get_an_error_response(fuzz_server, document):
    with fuzz_server.http() as http:
        for method, path, schema in operations(document):
            paths = ResourcePaths(http, document, fuzz_server.chat_model)
            path = paths.resolve_path(path)
            body = paths.bodies.example(schema) if schema else "{}"
            for kind in TYPES:
                check(http, method, path, kind, body, {"content-type": kind})
            for encoding in ("gzip", "identity", "br, deflate"):
                check(http, method, path, encoding, body, {**JSON, "content-encoding": encoding})
            check(http, method, path, "broken UTF-8", b'{"name": "\xff\xfe"}')
            check(http, method, path, "UTF-16", body.encode("utf-16"))


def test_the_examples_are_valid(fuzz_server, document):
    """Otherwise all bodies of the other tests would be refused for the same reason."""
    refused, accepted = [], 0
    with fuzz_server.http() as http:
        for method, path, schema in operations(document):
            if schema:
                paths = ResourcePaths(http, document, fuzz_server.chat_model)
                if "/embed" in path:
                    paths.bodies.ids["model"] = fuzz_server.embed_model
                elif "/images/" in path:
                    paths.bodies.ids["model"] = fuzz_server.image_model
                response = check(http, method, paths.resolve_path(path), "an example", paths.bodies.example(schema))
                accepted += response.status_code == 200
                refused += [f"{method} {path}: {response.text}"] if response.status_code != 200 else []
    assert accepted > 2 * len(refused), "\n".join(refused)
    print(f"{accepted} examples are accepted, {len(refused)} refused", *refused, sep="\n")
