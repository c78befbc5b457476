"""Batches with the official client."""

import json
import time

import openai
import pytest


def lines(server, count, **more):
    body = {"model": server.chat_model, "max_tokens": 4, "temperature": 0, **more}
    for index in range(count):
        message = {"role": "user", "content": f"Say {index}."}
        yield {
            "custom_id": f"request-{index}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {**body, "messages": [message]},
        }


@pytest.fixture
def create(strict):
    """A function that uploads lines and creates a batch for them."""

    def create(requests):
        content = "\n".join(json.dumps(request) for request in requests).encode()
        file = strict.files.create(file=("requests.jsonl", content), purpose="batch")
        assert file.purpose == "batch"
        return strict.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"run": "1"},
        )

    return create


def wait(client, batch):
    deadline = time.monotonic() + 120
    while batch.status in ("validating", "in_progress", "finalizing", "cancelling"):
        assert time.monotonic() < deadline, batch
        time.sleep(0.2)
        batch = client.batches.retrieve(batch.id)
    return batch


def test_a_batch_has_the_responses_of_the_interactive_api(strict, server, create):
    requests = list(lines(server, 3))
    created = create(requests)
    assert (created.object, created.completion_window, created.metadata) == ("batch", "24h", {"run": "1"})
    batch = wait(strict, created)
    assert batch.status == "completed", batch
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (3, 3, 0)
    assert batch.error_file_id is None and batch.completed_at >= batch.in_progress_at >= batch.created_at
    output = [json.loads(line) for line in strict.files.content(batch.output_file_id).text.splitlines()]
    assert [line["custom_id"] for line in output] == [request["custom_id"] for request in requests]
    for request, line in zip(requests, output):
        assert line["error"] is None and line["response"]["status_code"] == 200
        same = strict.chat.completions.create(**request["body"])
        completion = openai.types.chat.ChatCompletion.model_validate(line["response"]["body"])
        assert completion.choices[0].message.content == same.choices[0].message.content
    assert batch.id in [listed.id for listed in strict.batches.list(limit=2)]


def test_an_invalid_batch_names_the_line(strict, server, create):
    batch = wait(strict, create(lines(server, 2, stream=True)))
    assert batch.status == "failed"
    [first, second] = batch.errors.data
    assert (first.line, second.line, first.param) == (1, 2, "body.stream")


def test_a_batch_can_be_cancelled(strict, server, create):
    created = create(lines(server, 40, max_tokens=400))
    cancelled = strict.batches.cancel(created.id)
    assert cancelled.status == "cancelling"
    batch = wait(strict, cancelled)
    assert batch.status == "cancelled" and batch.cancelled_at
    with pytest.raises(openai.ConflictError):
        strict.batches.cancel(batch.id)
