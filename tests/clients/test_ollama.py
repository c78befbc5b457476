"""The Python package of Ollama against its API."""

import asyncio

import ollama
import openai
import pytest
from pydantic import BaseModel

QUESTION = [{"role": "user", "content": "Name a colour of the sea."}]
OPTIONS = {"temperature": 0, "num_predict": 24}


class Colour(BaseModel):
    colour: str
    is_dark: bool


def get_weather(city: str) -> str:
    """Returns the weather of a city.

    Args:
      city: The name of the city.
    """
    return f"Rain in {city}."


@pytest.fixture(scope="module")
def headers(server):
    return {"Authorization": f"Bearer {server.admin_key}"}


@pytest.fixture(scope="module")
def local(server, headers):
    return ollama.Client(host=server.url, headers=headers)


@pytest.fixture
def arguments(server):
    return {"model": server.chat_model, "messages": QUESTION, "options": OPTIONS}


def test_models_are_listed_shown_and_loaded(server, local):
    listed = {model.model: model for model in local.list().models}
    assert {f"{server.chat_model}:latest", f"{server.embed_model}:latest"} <= set(listed)
    chat = listed[f"{server.chat_model}:latest"]
    assert chat.size > 1_000_000 and len(chat.digest) == 64 and chat.modified_at.tzinfo
    assert chat.details.family and chat.details.parameter_size.endswith("M")
    shown = local.show(server.chat_model + ":latest")
    assert "completion" in shown.capabilities and "tools" in shown.capabilities
    assert shown.modelinfo[f"{shown.modelinfo['general.architecture']}.context_length"] > 500
    assert "<|im_start|>" in shown.template
    assert local.show(server.embed_model).capabilities == ["embedding"]
    assert local.generate(server.chat_model).done_reason == "load"
    [loaded] = [model for model in local.ps().models if model.model == f"{server.chat_model}:latest"]
    assert loaded.expires_at.year > 2100 and loaded.context_length > 500
    assert local.pull(server.chat_model).status == "success"


def test_a_chat_has_the_text_and_usage_of_a_chat_completion(local, client, arguments):
    response = local.chat(**arguments)
    completion = client.chat.completions.create(
        model=arguments["model"], messages=QUESTION, temperature=0, max_tokens=OPTIONS["num_predict"]
    )
    assert response.message.content == completion.choices[0].message.content
    assert (response.message.role, response.model, response.done) == ("assistant", arguments["model"], True)
    assert response.done_reason == completion.choices[0].finish_reason
    assert response.prompt_eval_count == completion.usage.prompt_tokens
    assert response.eval_count == completion.usage.completion_tokens
    assert 0 < response.eval_duration < response.total_duration


def test_a_stream_makes_the_same_response(local, arguments):
    whole = local.chat(**arguments)
    *parts, last = local.chat(**arguments, stream=True)
    assert "".join(part.message.content for part in [*parts, last]) == whole.message.content
    assert not any(part.done for part in parts) and last.done
    assert (last.done_reason, last.eval_count) == (whole.done_reason, whole.eval_count)


def test_the_async_client_chats_streams_and_embeds(server, headers, arguments):
    async def run():
        remote = ollama.AsyncClient(host=server.url, headers=headers)
        whole = await remote.chat(**arguments)
        text = "".join([part.message.content async for part in await remote.chat(**arguments, stream=True)])
        vectors = await remote.embed(server.embed_model, ["the sea", "the land"])
        return whole, text, vectors, await remote.list()

    whole, text, vectors, listed = asyncio.run(run())
    assert text == whole.message.content
    assert len(vectors.embeddings) == 2 and len(listed.models) >= 2


def test_tools_are_sent_and_results_are_taken(local, arguments):
    response = local.chat(**arguments, tools=[get_weather])
    for call in response.message.tool_calls or []:
        assert call.function.name == "get_weather" and isinstance(call.function.arguments["city"], str)
    call = ollama.Message.ToolCall(function=ollama.Message.ToolCall.Function(name="get_weather", arguments={"city": "Oslo"}))
    turns = [
        *QUESTION,
        ollama.Message(role="assistant", content="", tool_calls=[call]),
        ollama.Message(role="tool", content=get_weather("Oslo"), tool_name="get_weather"),
    ]
    answer = local.chat(**arguments | {"messages": turns}, tools=[get_weather])
    assert answer.prompt_eval_count > response.prompt_eval_count


def test_a_schema_is_enforced(local, arguments):
    arguments["options"] = {"temperature": 0, "num_predict": 200}
    response = local.chat(**arguments, format=Colour.model_json_schema())
    assert isinstance(Colour.model_validate_json(response.message.content).is_dark, bool)
    text = "".join(part.response for part in local.generate(
        arguments["model"], "A colour.", format=Colour.model_json_schema(), options=arguments["options"], stream=True
    ))
    assert Colour.model_validate_json(text)


def test_prompts_are_completed(local, client, arguments):
    model, options = arguments["model"], arguments["options"]
    chat = local.chat(**arguments)
    assert local.generate(model, QUESTION[0]["content"], options=options).response == chat.message.content
    raw = local.generate(model, "The sea is", raw=True, options=options)
    completion = client.completions.create(model=model, prompt="The sea is", temperature=0, max_tokens=24)
    assert raw.response == completion.choices[0].text
    parts = list(local.generate(model, "The sea is", raw=True, options=options, stream=True))
    assert "".join(part.response for part in parts) == raw.response and parts[-1].done


def test_a_prompt_continues_an_earlier_response(local, arguments):
    model, options = arguments["model"], arguments["options"]
    first = local.generate(model, "The sea is", options=options)
    assert len(first.context) >= first.prompt_eval_count
    *_, last = local.generate(model, "The sea is", options=options, stream=True)
    assert last.context == first.context
    second = local.generate(model, "And the land?", context=first.context, options=options)
    turns = [("user", "The sea is"), ("assistant", first.response), ("user", "And the land?")]
    chat = local.chat(model, [{"role": role, "content": text} for role, text in turns], options=options)
    assert second.prompt_eval_count == chat.prompt_eval_count
    assert local.generate(model, "The sea is", raw=True, options=options).context is None


def test_models_are_created_copied_shown_and_deleted(local, arguments):
    model, options = arguments["model"], arguments["options"]
    created = local.create("mario", from_=model, system="You are Mario.", parameters={"temperature": 0, "stop": ["END"]})
    assert created.status == "success"
    try:
        local.copy("mario", "luigi:v1")
        shown = local.show("luigi:v1")
        assert 'PARAMETER stop                           "END"' in shown.modelfile and "You are Mario." in shown.modelfile
        assert shown.parameters.split() == ["temperature", "0", "stop", '"END"']
        assert shown.details.parent_model == model and "completion" in shown.capabilities
        names = {listed.model for listed in local.list().models}
        assert {"mario:latest", "luigi:v1"} <= names
        chat = local.chat("luigi:v1", QUESTION, options=options)
        with_system = local.chat(model, [{"role": "system", "content": "You are Mario."}, *QUESTION], options=options)
        assert (chat.model, chat.message.content) == ("luigi:v1", with_system.message.content)
        *_, last = local.create("luigi:v1", from_="mario", system="You are Luigi.", stream=True)
        assert last.status == "success" and "You are Luigi." in local.show("luigi:v1").modelfile
    finally:
        assert local.delete("luigi:v1").status == local.delete("mario").status == "success"
    with pytest.raises(ollama.ResponseError) as missing:
        local.show("mario")
    assert missing.value.status_code == 404


def test_num_ctx_is_what_is_read_of_a_chat(local, arguments):
    turn = [{"role": "user", "content": "sea " * 100}, {"role": "assistant", "content": "land " * 100}]
    options = OPTIONS | {"num_ctx": 150}
    cut = local.chat(arguments["model"], [*turn, *QUESTION], options=options)
    assert cut.prompt_eval_count == local.chat(**arguments).prompt_eval_count


def test_the_requests_of_oterm_are_answered(server, local):
    """oterm takes a name from the list, shows it, chats on the OpenAI API and looks its context up among the loaded models."""
    local.create("oterm-model", from_=server.chat_model, parameters={"temperature": 0, "num_predict": 8})
    try:
        [name] = [model.model for model in local.list().models if model.model.startswith("oterm-model")]
        shown = local.show(name)
        assert {"completion", "tools"} <= set(shown.capabilities)
        assert dict(line.split(None, 1) for line in shown.parameters.splitlines()) == {"temperature": "0", "num_predict": "8"}
        compatible = openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.admin_key)
        tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}
        arguments = {"messages": QUESTION, "tools": [tool], "extra_body": {"reasoning_effort": "none"}}
        chunks = list(compatible.chat.completions.create(model=name, stream=True, stream_options={"include_usage": True}, **arguments))
        assert chunks[-1].usage.completion_tokens <= 8
        [plain] = [model.model for model in local.list().models if model.model == f"{server.chat_model}:latest"]
        compatible.chat.completions.create(model=plain, messages=QUESTION, max_tokens=2)
        assert next(model.context_length for model in local.ps().models if model.model == plain) > 500
    finally:
        local.delete("oterm-model")


def test_log_probabilities_are_returned(local, arguments):
    response = local.chat(**arguments, logprobs=True, top_logprobs=2)
    assert "".join(token.token for token in response.logprobs).startswith(response.message.content[:5])
    assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in response.logprobs)


def test_embeddings_are_those_of_the_other_api(server, local, plain_vector):
    found = local.embed(server.embed_model, ["the sea"])
    assert found.embeddings[0] == pytest.approx(plain_vector("the sea"), abs=1e-6)
    assert found.prompt_eval_count > 0 and found.total_duration > 0
    assert local.embeddings(server.embed_model, "the sea").embedding == pytest.approx(found.embeddings[0], abs=1e-6)


def test_errors_have_a_status_and_a_text(server, local, arguments):
    with pytest.raises(ollama.ResponseError) as missing:
        local.chat(**arguments | {"model": "none"})
    assert missing.value.status_code == 404 and "none" in missing.value.error
    with pytest.raises(ollama.ResponseError) as missing:
        list(local.chat(**arguments | {"model": "none"}, stream=True))
    assert missing.value.status_code == 404
    with pytest.raises(ollama.ResponseError) as unsigned:
        ollama.Client(host=server.url).list()
    assert unsigned.value.status_code == 401
    with pytest.raises(ollama.ResponseError) as refused:
        local.create("mine", files={"a.gguf": "sha256:0"})
    assert refused.value.status_code == 400 and "outpost models" in refused.value.error
    with pytest.raises(ollama.ResponseError) as kept:
        local.delete(server.chat_model)
    assert kept.value.status_code == 409
