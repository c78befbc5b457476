"""Bodies that no generator thinks of, at every route of the document that takes one: each is answered
in our shape, soon, and never with a 5xx."""

import time

import pytest
from shape import wrong_with

DEEP = 10_000
JSON = {"content-type": "application/json"}

# As text: most of them cannot be written by a JSON library.
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
    "surrogates the wrong way": '"\\udc00\\ud800"',
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
# Too long to be sent for every field at every depth.
LONG = {
    "a million letters": '"' + "a" * 1_000_000 + '"',
    "a million words": '"' + "ab " * 333_333 + '"',
    "a million entries": "[" + "0," * 999_999 + "0]",
}
WHOLE = {
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
    """`(method, path, schema of the body or None)` of every route with a key that may take a body."""
    for path, item in document["paths"].items():
        if not path.startswith(("/v1/", "/openai/v1/")):
            continue
        for method, operation in item.items():
            content = operation.get("requestBody", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema")
            if schema or method in ("post", "put", "patch"):
                yield method.upper(), path, schema


class Bodies:
    """Bodies that are right but for one value, written from their schemas."""

    def __init__(self, document, chat_model, ids):
        self.document, self.chat_model, self.ids = document, chat_model, ids

    def resolve(self, schema):
        while "$ref" in schema:
            schema = self.document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
        return schema

    def example(self, schema, name=""):
        """The text of a value that fits."""
        schema = self.resolve(schema)
        if name in self.ids or name == "model":
            return f'"{self.ids.get(name, self.chat_model)}"'
        for choice in schema.get("oneOf", schema.get("anyOf", [])):
            return self.example(choice, name)
        if "enum" in schema:
            # A conversation that begins with the system's turn is not given another one by the template.
            return '"system"' if "system" in schema["enum"] else f'"{schema["enum"][0]}"'
        kind = schema.get("type", "object")
        kind = kind[0] if isinstance(kind, list) else kind
        if kind == "object":
            return self.object({field: self.example(value, field) for field, value in self.required(schema).items()})
        if kind == "array":
            return f"[{self.example(schema.get('items', {'type': 'string'}))}]"
        return {"string": '"x"', "integer": "1", "number": "1", "boolean": "false"}.get(kind, "null")

    def required(self, schema):
        properties = schema.get("properties", {})
        # Model and content are demanded by more than the schema; a chat that is right stays cheap.
        names = {*schema.get("required", []), *({"model", "content", "max_tokens", "max_completion_tokens"} & properties.keys())}
        return {name: value for name, value in properties.items() if name in names}

    @staticmethod
    def object(fields):
        return "{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}"

    def with_one_wrong(self, schema, depth):
        """`(what is wrong, text)` for every field down to a depth and every nasty value."""
        schema = self.resolve(schema)
        for choice in schema.get("oneOf", schema.get("anyOf", [])):
            yield from self.with_one_wrong(choice, depth)
        if "items" in schema and depth:
            yield from ((what + " in an array", f"[{text}]") for what, text in self.with_one_wrong(schema["items"], depth - 1))
        if "properties" not in schema:
            return
        right = {name: self.example(value, name) for name, value in self.required(schema).items()}
        for field, inner in schema["properties"].items():
            wrong = [*VALUES.items(), *(self.with_one_wrong(inner, depth - 1) if depth else LONG.items())]
            yield from ((f"{what} as {field}", self.object({**right, field: value})) for what, value in wrong)
        for field, value in right.items():
            yield f"{field} twice", self.object(right)[:-1] + f', "{field}": {value}' + "}"
        yield "an unknown field", self.object({**right, "x" * 100_000: "1"})


@pytest.fixture(scope="module")
def document(fuzzed):
    with fuzzed.http() as http:
        return http.get("/openapi.json").json()


class Places:
    """Paths of things that exist: each is made by a POST to the collection above it."""

    def __init__(self, http, document, chat_model):
        self.http, self.chat_model = http, chat_model
        self.bodies = Bodies(document, chat_model, {})
        self.makers = {path: schema for method, path, schema in operations(document) if method == "POST" and schema}
        # A project of its own for every route: some routes end it.
        self.bodies.ids["project_id"] = self.make("/v1/projects")

    def make(self, collection):
        if collection not in self.makers:
            return self.chat_model
        reply = self.http.post(collection, content=self.bodies.example(self.makers[collection]), headers=JSON)
        return reply.json()["id"] if reply.status_code == 200 else "0"

    def fill(self, path):
        done = []
        for part in path.split("/"):
            if part == "{project_id}":
                part = self.bodies.ids["project_id"]
            done.append(self.make("/".join(done)) if part.startswith("{") else part)
        return "/".join(done)


def check(http, method, path, what, body, headers=JSON):
    began = time.monotonic()
    content = body if isinstance(body, bytes) else body.encode(errors="surrogatepass")
    reply = http.request(method, path, content=content, headers=headers)
    took = time.monotonic() - began
    told = f"{method} {path}, {what}: {reply.status_code} in {took:.1f} s: {reply.text[:300]}"
    assert reply.status_code < 500, told
    assert reply.headers["x-request-id"].startswith("req_"), told
    if reply.status_code >= 400:
        assert wrong_with(reply) is None, f"{told} ({wrong_with(reply)})"
    assert took < 10, told
    return reply


def test_every_body_is_answered(fuzzed, document):
    count = 0
    with fuzzed.http() as http:
        for method, path, schema in operations(document):
            places = Places(http, document, fuzzed.chat_model)
            # Both mounts have the same handlers: one goes deep, the other gets the long ones.
            wrong = places.bodies.with_one_wrong(schema, 3 if path.startswith("/v1/") else 0) if schema else []
            path = places.fill(path)
            for what, body in [*WHOLE.items(), *wrong]:
                check(http, method, path, what, body)
                count += 1
        assert http.get("/healthz").status_code == 200
    assert count > 2000
    print(f"{count} bodies")


def test_every_content_type_is_answered(fuzzed, document):
    with fuzzed.http() as http:
        for method, path, schema in operations(document):
            places = Places(http, document, fuzzed.chat_model)
            path = places.fill(path)
            body = places.bodies.example(schema) if schema else "{}"
            for kind in TYPES:
                check(http, method, path, kind, body, {"content-type": kind})
            for encoding in ("gzip", "identity", "br, deflate"):
                check(http, method, path, encoding, body, {**JSON, "content-encoding": encoding})
            check(http, method, path, "broken UTF-8", b'{"name": "\xff\xfe"}')
            check(http, method, path, "UTF-16", body.encode("utf-16"))


def test_the_examples_themselves_are_right(fuzzed, document):
    """Else every body above would be refused for the same dull reason."""
    refused, taken = [], 0
    with fuzzed.http() as http:
        for method, path, schema in operations(document):
            if schema:
                places = Places(http, document, fuzzed.chat_model)
                reply = check(http, method, places.fill(path), "an example", places.bodies.example(schema))
                taken += reply.status_code == 200
                refused += [f"{method} {path}: {reply.text}"] if reply.status_code != 200 else []
    assert taken > 2 * len(refused), "\n".join(refused)
    print(f"{taken} examples are taken, {len(refused)} refused", *refused, sep="\n")
