"""Rate limits, budgets and usage with the openai package."""

import time

import openai
import pytest


@pytest.fixture
def limited(http, project, project_key):
    """`(function that sets limits of the project, secret of a key)`."""

    def change(**limits):
        response = http.patch(f"/v1/projects/{project}/rate-limits", json=limits)
        assert response.status_code == 200, response.text

    return change, project_key["secret"]


def test_a_rate_limit_raises_rate_limit_error(server, limited):
    change, key = limited
    change(requests_per_minute=20, burst_limit=1)
    client = server.client(key=key)
    headers = client.models.with_raw_response.list().headers
    assert (headers["x-ratelimit-limit-requests"], headers["x-ratelimit-remaining-requests"]) == ("20", "0")
    with pytest.raises(openai.RateLimitError) as caught:
        client.models.list()
    assert (caught.value.type, caught.value.code) == ("rate_limit_error", "rate_limit_exceeded")
    assert 0 < int(caught.value.response.headers["retry-after-ms"]) <= 3000


def test_the_client_retries_after_the_delay(server, limited):
    change, key = limited
    change(requests_per_minute=20, burst_limit=1)
    client = server.client(key=key, max_retries=2)
    client.models.list()
    before = time.monotonic()
    assert client.models.list().data
    assert time.monotonic() - before >= 0.5


def test_an_exhausted_budget_is_not_retried(server, limited, chat_arguments):
    change, key = limited
    client = server.client(key=key, max_retries=5)
    client.chat.completions.create(**chat_arguments())
    change(token_budget=1)
    with pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(**chat_arguments())
    assert caught.value.code == "insufficient_quota"
    assert caught.value.request.headers["x-stainless-retry-count"] == "0"


def test_project_usage_equals_the_reported_usage(server, http, project, project_key, chat_arguments):
    client = server.client(key=project_key["secret"])
    whole = client.chat.completions.create(**chat_arguments())
    *_, last = client.chat.completions.create(**chat_arguments(), stream=True, stream_options={"include_usage": True})
    usage = http.get(f"/v1/projects/{project}/usage", params={"group_by": "model"}).json()
    summary = [whole.usage, last.usage]
    assert usage["requests"] == 2
    assert usage["tokens"]["input"] == sum(each.prompt_tokens for each in summary)
    assert usage["tokens"]["output"] == sum(each.completion_tokens for each in summary)
    assert [group["model"] for group in usage["groups"]] == [server.chat_model]


def test_a_retry_with_an_idempotency_key_has_one_effect(http):
    name = f"once {time.time_ns()}"
    headers = {"Idempotency-Key": name}
    first, second = (http.post("/v1/projects", json={"name": name}, headers=headers) for _ in range(2))
    assert first.json() == second.json()
    assert second.headers["idempotent-replayed"] == "true"
