"""Responses on `/openai/v1` have no field that OpenAI's API does not have, except those that docs/api.md lists. OpenAI's
fields have OpenAI's types on both mounts, except the fields of the envelope.

The types of the `openai` package are the reference. Every operation below one of OpenAI's paths must be in `OPERATIONS`.
"""

import json
import re
import time
import types
import typing

import pytest
from conftest import ROOT
from openai import types as openai_types
from openai.pagination import SyncCursorPage, SyncPage
from openai.types import chat, fine_tuning, shared
from openai.types.fine_tuning.jobs import FineTuningJobCheckpoint
from pydantic import BaseModel, TypeAdapter
from test_fine_tuning import CONTENT, PREFERENCE, QUICK
from test_images import png

STRICT_MOUNT = "/openai/v1"
OPENAI_PATHS = ("/chat/", "/completions", "/embeddings", "/moderations", "/images/", "/models", "/files", "/batches", "/fine_tuning/")


class ErrorBody(BaseModel):
    error: shared.ErrorObject


JOBS, FILES = SyncCursorPage[fine_tuning.FineTuningJob], SyncCursorPage[openai_types.FileObject]
# The types of the response bodies; of the events, if the response is a stream.
OPERATIONS = {
    "POST /chat/completions": [chat.ChatCompletion, chat.ChatCompletionChunk],
    "GET /chat/completions": [SyncCursorPage[chat.ChatCompletion]],
    "GET /chat/completions/{completion_id}": [chat.ChatCompletion],
    "POST /chat/completions/{completion_id}": [chat.ChatCompletion],
    "DELETE /chat/completions/{completion_id}": [chat.ChatCompletionDeleted],
    # The package says of these messages, which are those of the request, that they are the assistant's.
    "GET /chat/completions/{completion_id}/messages": [SyncCursorPage[object]],
    # The package has no type for chunks, whose `finish_reason` is null until the last one.
    "POST /completions": [openai_types.Completion],
    "POST /embeddings": [openai_types.CreateEmbeddingResponse],
    "POST /moderations": [openai_types.ModerationCreateResponse],
    "POST /images/generations": [openai_types.ImagesResponse, openai_types.ImageGenStreamEvent],
    "POST /images/edits": [openai_types.ImagesResponse, openai_types.ImageEditStreamEvent],
    "POST /images/variations": [openai_types.ImagesResponse],
    "GET /models": [SyncPage[openai_types.Model]],
    "GET /models/{model_id}": [openai_types.Model],
    "DELETE /models/{model_id}": [openai_types.ModelDeleted],
    "POST /models/{model_id}/load": [openai_types.Model],
    "POST /models/{model_id}/unload": [openai_types.Model],
    "POST /files": [openai_types.FileObject],
    "GET /files": [FILES],
    "GET /files/{file_id}": [openai_types.FileObject],
    "DELETE /files/{file_id}": [openai_types.FileDeleted],
    "POST /batches": [openai_types.Batch],
    "GET /batches": [SyncCursorPage[openai_types.Batch]],
    "GET /batches/{batch_id}": [openai_types.Batch],
    "POST /batches/{batch_id}/cancel": [ErrorBody],
    "POST /fine_tuning/jobs": [fine_tuning.FineTuningJob],
    "GET /fine_tuning/jobs": [JOBS],
    "GET /fine_tuning/jobs/{job_id}": [fine_tuning.FineTuningJob],
    "PATCH /fine_tuning/jobs/{job_id}": [fine_tuning.FineTuningJob],
    "POST /fine_tuning/jobs/{job_id}/cancel": [ErrorBody],
    "POST /fine_tuning/jobs/{job_id}/pause": [ErrorBody],
    "POST /fine_tuning/jobs/{job_id}/resume": [ErrorBody],
    "GET /fine_tuning/jobs/{job_id}/checkpoints": [SyncCursorPage[FineTuningJobCheckpoint]],
    "GET /fine_tuning/jobs/{job_id}/events": [SyncCursorPage[fine_tuning.FineTuningJobEvent]],
}
# OpenAI's pages have this field, but the package does not read it.
UNREAD_PAGE_FIELDS = {"object"}
# Only an adapter, a model that cannot be used, one on a device without kernels for its weights, a pinned one or an alias has
# these fields.
UNSEEN_MODEL_FIELDS = {"base_model", "dequantized", "problem", "pinned", "alias_of"}
# The content of a file is not JSON.
CONTENT_OPERATION = "GET /files/{file_id}/content"
# A pull is no object of OpenAI.
PULL_OPERATION = "POST /models/pull"


def extra_fields(value, kind, prefix=""):
    """The paths of the fields in a JSON value that its type does not have, such as `data[].sha256`."""
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        return extra_fields(value, typing.get_args(kind)[0], prefix)
    if origin in (typing.Union, types.UnionType):
        return min((extra_fields(value, member, prefix) for member in members(value, kind)), key=len, default=set())
    if isinstance(value, list):
        [item] = typing.get_args(kind) or [object]
        return set().union(*(extra_fields(one, item, prefix + "[]") for one in value))
    if not isinstance(value, dict) or not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return set()
    fields = {field.alias or name: field.annotation for name, field in kind.model_fields.items()}
    found = set()
    for name, inner in value.items():
        path = f"{prefix}.{name}" if prefix else name
        found |= extra_fields(inner, fields[name], path) if name in fields else {path}
    return found


def members(value, union):
    """The members of a union that the value may be. An object is a model, with the right `type` if the model has one."""
    for member in typing.get_args(union):
        if typing.get_origin(member) in (list, typing.Annotated, typing.Union):
            if isinstance(value, list) or typing.get_origin(member) is not list:
                yield member
        elif isinstance(value, dict) and isinstance(member, type) and issubclass(member, BaseModel):
            tag = member.model_fields.get("type")
            if tag is None or value.get("type") in (typing.get_args(tag.annotation) or [value.get("type")]):
                yield member


def documented():
    """The table in docs/api.md: the extra fields by type name."""
    text = (ROOT / "docs/api.md").read_text()
    section = text.split("### Fields that OpenAI does not have")[1].split("\n#")[0]
    rows = re.findall(r"^\| `([A-Za-z.*]+)` \| (.*) \|$", section, re.MULTILINE)
    return {name: set(re.findall(r"`([^`]+)`", fields)) for name, fields in rows}


@pytest.fixture(scope="module")
def strict_bodies(server, http):
    return bodies(server, http, STRICT_MOUNT)


def bodies(server, http, mount):
    """JSON values of every operation, each with the type that it should have."""
    found = []

    def call(operation, ids=None, events=False, status=200, **arguments):
        method, path = operation.split(" ")
        response = http.request(method, mount + path.format(**(ids or {})), **arguments)
        assert response.status_code == status, response.text
        if not events:
            found.append((operation, response.json(), OPERATIONS[operation][0]))
            return response.json()
        data = re.findall(r"^data: (\{.*)$", response.text, re.MULTILINE)
        assert data, response.text
        found.extend((operation, json.loads(one), OPERATIONS[operation][1]) for one in data)

    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    message = {"model": server.chat_model, "max_tokens": 16, "messages": [{"role": "user", "content": "Hello"}]}
    message |= {"logprobs": True, "top_logprobs": 2, "return_token_ids": True}
    call_tool = {"model": server.chat_model, "messages": message["messages"], "tools": [tool], "max_tokens": 64}
    call_tool |= {"tool_choice": {"type": "function", "function": {"name": "add"}}}
    for body in (message, call_tool):
        call("POST /chat/completions", json=body)
        stream = {**body, "stream": True, "stream_options": {"include_usage": True}}
        call("POST /chat/completions", json=stream, events=True)
    text = {"model": server.chat_model, "prompt": ["Hello", "Good"], "logprobs": 2, "return_token_ids": True}
    call("POST /completions", json=text)
    stored = call("POST /chat/completions", json={**message, "store": True, "metadata": {"a": "b"}})["id"]
    one = {"completion_id": stored}
    call("GET /chat/completions")
    call("GET /chat/completions/{completion_id}", one)
    call("POST /chat/completions/{completion_id}", one, json={"metadata": {"a": "c"}})
    call("GET /chat/completions/{completion_id}/messages", one)
    call("DELETE /chat/completions/{completion_id}", one)
    call("POST /embeddings", json={"model": server.embed_model, "input": ["a"]})
    call("POST /moderations", json={"model": server.moderation_model, "input": ["a"]})

    image = {"model": server.image_model, "prompt": "a house", "steps": 4, "quality": "low"}
    for more in ({}, {"response_format": "url"}):
        call("POST /images/generations", json={**image, **more})
    call("POST /images/generations", json={**image, "stream": True, "partial_images": 1}, events=True)
    photo = {"image": ("image.png", png(64, 64, lambda x, y: (x, y, 99)))}
    for path in ("edits", "variations"):
        call(f"POST /images/{path}", data=image, files=photo)
    call("POST /images/edits", data={**image, "stream": "true", "partial_images": "1"}, files=photo, events=True)

    call("GET /models", params={"include_limits": "true"})
    for model in (server.chat_model, server.image_model):
        call("GET /models/{model_id}", {"model_id": model}, params={"include_limits": "true", "project_id": own_project(http)})
        for action in ("load", "unload"):
            call(f"POST /models/{{model_id}}/{action}", {"model_id": model})

    file = call("POST /files", files={"file": ("train.jsonl", CONTENT)}, data={"purpose": "fine-tune"})["id"]
    call("GET /files")
    call("GET /files/{file_id}", {"file_id": file})
    job = call("POST /fine_tuning/jobs", json={"model": server.chat_model, "training_file": file, "hyperparameters": QUICK})["id"]
    preferences = {"file": ("preferences.jsonl", PREFERENCE)}
    preferences = call("POST /files", files=preferences, data={"purpose": "fine-tune"})["id"]
    method = {"type": "dpo", "dpo": {"hyperparameters": {"n_epochs": 1}}}
    call("POST /fine_tuning/jobs", json={"model": server.chat_model, "training_file": preferences, "method": method})
    call("GET /fine_tuning/jobs")
    call("GET /fine_tuning/jobs/{job_id}", {"job_id": job})
    call("PATCH /fine_tuning/jobs/{job_id}", {"job_id": job}, json={"metadata": {"a": "b"}})
    deadline = time.monotonic() + 120
    while (done := http.get(f"{mount}/fine_tuning/jobs/{job}").json())["fine_tuned_model"] is None:
        assert time.monotonic() < deadline and done["error"] is None, done
        time.sleep(0.1)
    call("GET /fine_tuning/jobs/{job_id}", {"job_id": job})
    call("GET /fine_tuning/jobs/{job_id}/events", {"job_id": job})
    call("GET /fine_tuning/jobs/{job_id}/checkpoints", {"job_id": job})
    call("DELETE /models/{model_id}", {"model_id": done["fine_tuned_model"]})
    # The job has ended.
    for action in ("cancel", "pause", "resume"):
        call(f"POST /fine_tuning/jobs/{{job_id}}/{action}", {"job_id": job}, status=409, json={})
    call("DELETE /files/{file_id}", {"file_id": file})
    batches(http, mount, call)
    return found


def batches(http, mount, call):
    """Two batches, with and without a valid input."""
    for content in (b"[]", json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {}}).encode()):
        file = call("POST /files", files={"file": ("requests.jsonl", content)}, data={"purpose": "batch"})["id"]
        new = {"input_file_id": file, "endpoint": "/v1/embeddings", "completion_window": "24h"}
        batch = call("POST /batches", json=new)["id"]
        deadline = time.monotonic() + 120
        # The field is in both formats.
        while (done := http.get(f"{mount}/batches/{batch}").json())["completed_at"] is None and done["failed_at"] is None:
            assert time.monotonic() < deadline, done
            time.sleep(0.1)
        call("GET /batches/{batch_id}", {"batch_id": batch})
        call("POST /batches/{batch_id}/cancel", {"batch_id": batch}, status=409, json={})
    call("GET /batches")


def own_project(http):
    return http.get("/v1/me").json()["project_id"]


def name_of(kind):
    """The name of a type in the docs. Pages are one type, and so are the events of an endpoint."""
    if typing.get_origin(kind) is typing.Annotated:
        return "ImageEvent"
    return "Page" if issubclass(kind, (SyncPage, SyncCursorPage)) else kind.__name__


def test_every_operation_of_openais_paths_is_compared(strict_bodies, http):
    paths = http.get("/openapi.json").json()["paths"]
    ours = {
        f"{method.upper()} {path.removeprefix(STRICT_MOUNT)}"
        for path, item in paths.items() if path.startswith(STRICT_MOUNT)
        for method in item if path.removeprefix(STRICT_MOUNT).startswith(OPENAI_PATHS)
    }
    assert ours == set(OPERATIONS) | {CONTENT_OPERATION, PULL_OPERATION}
    assert {operation for operation, _, _ in strict_bodies} == set(OPERATIONS)


def test_extra_fields_are_documented(strict_bodies):
    found = {}
    for _, value, kind in strict_bodies:
        if isinstance(kind, type) and issubclass(kind, (SyncPage, SyncCursorPage)):
            [item] = typing.get_args(kind.model_fields["data"].annotation)
            for one in value["data"]:
                found.setdefault(item.__name__, set()).update(extra_fields(one, item))
            value = {**value, "data": []}
        found.setdefault(name_of(kind), set()).update(extra_fields(value, kind))
    found["Page"] -= UNREAD_PAGE_FIELDS
    moderation = found["ModerationCreateResponse"]
    found["ModerationCreateResponse"] = {re.sub(r"(\.categor\w+)\.\w+$", r"\1.*", path) for path in moderation}
    found["Model"] |= UNSEEN_MODEL_FIELDS
    assert {name: fields for name, fields in found.items() if fields} == documented()


def without_envelope(value, kind):
    """The body with OpenAI's `object` and `status`. On `/v1`, the status is in `state`."""
    if value.get("object") != "service.resource":
        return value
    constant = typing.get_args(kind.model_fields["object"].annotation) if "object" in kind.model_fields else ()
    return {**value, "object": next(iter(constant), "list"), "status": value.get("state")}


def test_openais_fields_have_openais_types(strict_bodies, server, http):
    for operation, value, kind in strict_bodies + bodies(server, http, "/v1"):
        # OpenAI has no progress events; they are sent on `/v1` only.
        if not value.get("type", "").endswith(".progress"):
            checked = TypeAdapter(kind).validate_python(without_envelope(value, kind), strict=True)
            assert checked, operation


def test_an_extra_field_is_found():
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}", "parsed": {}}}
    message = {"role": "assistant", "tool_calls": [call], "mood": 1}
    body = {"id": "a", "choices": [{"index": 0, "message": message}], "extra": {"b": 1}}
    expected = {"extra", "choices[].message.mood", "choices[].message.tool_calls[].function.parsed"}
    assert extra_fields(body, chat.ChatCompletion) == expected
    event = {"type": "image_generation.completed", "usage": {"images": 1}, "partial_image_index": 0}
    assert extra_fields(event, openai_types.ImageGenStreamEvent) == {"usage.images", "partial_image_index"}
