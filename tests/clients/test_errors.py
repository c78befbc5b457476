"""The client's exception classes, and what they carry."""

import openai
import pytest


def test_a_bad_key(server):
    with pytest.raises(openai.AuthenticationError) as caught:
        server.client(key="opk_nonsense").models.list()
    assert (caught.value.type, caught.value.code) == ("authentication_error", "invalid_api_key")
    assert caught.value.request_id.startswith("req_")
    assert caught.value.response.headers["www-authenticate"].startswith("Bearer")


def test_no_key(server, http):
    reply = http.get("/v1/models", headers={"Authorization": ""})
    assert reply.status_code == 401
    assert reply.json()["error"]["code"] in ("missing_api_key", "invalid_api_key")


def test_an_unknown_model(client, ask):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(**ask(model="no-such-model"))
    assert caught.value.code == "model_not_found"
    assert "no-such-model" in caught.value.message


BAD = [
    ({"temperature": 9}, "temperature"),
    ({"top_p": -1}, "top_p"),
    ({"n": 0}, "n"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"frequency_penalty": 3}, "frequency_penalty"),
    ({"presence_penalty": -3}, "presence_penalty"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"stop": [str(number) for number in range(17)]}, "stop"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"temperature": "hot"}, "temperature"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
]


@pytest.mark.parametrize("change,param", BAD, ids=[f"{list(change)[-1]}-{i}" for i, (change, _) in enumerate(BAD)])
def test_a_bad_parameter_is_named(client, ask, change, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ask(**change))
    error = caught.value
    assert (error.type, error.code) == ("invalid_request_error", "invalid_parameter")
    assert error.param and error.param.startswith(param), error.param
    assert error.request_id.startswith("req_")


def test_a_prompt_that_does_not_fit(client, ask):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ask("word " * 100_000))
    assert caught.value.code == "context_length_exceeded"


def test_an_error_looks_the_same_on_both_mounts(http, mount):
    reply = http.post(mount + "/chat/completions", content="{", headers={"Content-Type": "application/json"})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert set(error) >= {"message", "type", "code", "param", "request_id"}
    assert error["request_id"] == reply.headers["x-request-id"]


def test_a_foreign_project_is_denied(server, http, project_key):
    foreign = http.post("/v1/projects", json={"name": "foreign"}).json()["id"]
    with server.http(project_key["secret"]) as mine:
        for reply in [
            mine.get(f"/v1/projects/{foreign}"),
            mine.get("/v1/api-keys", params={"project_id": foreign}),
            mine.post("/v1/api-keys", json={"name": "x", "project_id": foreign}),
            mine.put(f"/v1/projects/{foreign}", json={"name": "taken"}),
        ]:
            assert reply.status_code == 403, reply.text
            error = reply.json()["error"]
            assert (error["type"], error["code"]) == ("permission_error", "project_mismatch")
    with pytest.raises(openai.PermissionDeniedError):
        server.client(key=project_key["secret"]).get(f"/projects/{foreign}", cast_to=object)


def test_a_project_key_makes_no_projects(server, project_key):
    with server.http(project_key["secret"]) as mine:
        reply = mine.post("/v1/projects", json={"name": "x"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "insufficient_scope")
