"""The exception classes of the openai package and their fields."""

import openai
import pytest


def test_an_invalid_key(server):
    with pytest.raises(openai.AuthenticationError) as caught:
        server.client(key="opk_nonsense").models.list()
    assert (caught.value.type, caught.value.code) == ("authentication_error", "invalid_api_key")
    assert caught.value.request_id.startswith("req_")
    assert caught.value.response.headers["www-authenticate"].startswith("Bearer")


def test_no_key(server, http):
    response = http.get("/v1/models", headers={"Authorization": ""})
    assert response.status_code == 401
    assert response.json()["error"]["code"] in ("missing_api_key", "invalid_api_key")


def test_an_unknown_model(client, chat_arguments):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(**chat_arguments(model="no-such-model"))
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
def test_an_invalid_parameter_is_named(client, chat_arguments, change, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**chat_arguments(**change))
    error = caught.value
    assert (error.type, error.code) == ("invalid_request_error", "invalid_parameter")
    assert error.param and error.param.startswith(param), error.param
    assert error.request_id.startswith("req_")


def test_a_too_long_prompt(client, chat_arguments):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**chat_arguments("word " * 100_000))
    assert caught.value.code == "context_length_exceeded"


def test_errors_have_the_same_format_on_both_mounts(http, mount):
    response = http.post(mount + "/chat/completions", content="{", headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    error = response.json()["error"]
    assert set(error) >= {"message", "type", "code", "param", "request_id"}
    assert error["request_id"] == response.headers["x-request-id"]


def test_another_project_is_denied(server, http, project_key):
    foreign = http.post("/v1/projects", json={"name": "foreign"}).json()["id"]
    with server.http(project_key["secret"]) as mine:
        for response in [
            mine.get(f"/v1/projects/{foreign}"),
            mine.get("/v1/api-keys", params={"project_id": foreign}),
            mine.post("/v1/api-keys", json={"name": "x", "project_id": foreign}),
            mine.put(f"/v1/projects/{foreign}", json={"name": "taken"}),
        ]:
            assert response.status_code == 403, response.text
            error = response.json()["error"]
            assert (error["type"], error["code"]) == ("permission_error", "project_mismatch")
    with pytest.raises(openai.PermissionDeniedError):
        server.client(key=project_key["secret"]).get(f"/projects/{foreign}", cast_to=object)


def test_a_project_key_cannot_create_projects(server, project_key):
    with server.http(project_key["secret"]) as mine:
        response = mine.post("/v1/projects", json={"name": "x"})
    assert (response.status_code, response.json()["error"]["code"]) == (403, "insufficient_scope")
