import pytest
from openai import BadRequestError


@pytest.fixture
def arguments(server):
    """A function that returns the arguments of a short, deterministic completion. Each can be replaced."""

    def arguments(prompt="One, two, three, four,", **more):
        return {"model": server.chat_model, "prompt": prompt, "temperature": 0, "max_tokens": 12, **more}

    return arguments


@pytest.mark.parametrize("name", ["client", "strict"])
def test_a_text_is_continued(name, request, arguments, server):
    response = request.getfixturevalue(name).completions.create(**arguments())
    assert response.id.startswith("cmpl-")
    assert response.model == server.chat_model
    [choice] = response.choices
    assert "five" in choice.text
    assert choice.finish_reason == "length" and choice.logprobs is None
    usage = response.usage
    assert usage.completion_tokens == 12
    assert usage.total_tokens == usage.prompt_tokens + 12
    assert usage.prompt_tokens_details.cached_tokens >= 0


def test_a_stream_equals_the_response_without_streaming(server, mount, arguments):
    client = server.client(mount)
    asked = arguments(["One, two,", "Monday, Tuesday,"], n=2, logprobs=2)
    whole = client.completions.create(**asked)
    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert all(chunk.object == "text_completion" for chunk in chunks)
    assert len({chunk.id for chunk in chunks}) == 1
    for choice in whole.choices:
        mine = [one for chunk in chunks for one in chunk.choices if one.index == choice.index]
        assert "".join(one.text for one in mine) == choice.text
        assert [one.finish_reason for one in mine if one.finish_reason] == [choice.finish_reason]
        tokens = [token for one in mine if one.logprobs for token in one.logprobs.tokens]
        assert tokens == choice.logprobs.tokens and len(tokens) == 12
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


async def text_of(stream):
    return "".join([chunk.choices[0].text async for chunk in stream])


def test_an_asynchronous_stream(server, arguments):
    import asyncio

    async def run():
        client = server.async_client("/openai/v1")
        whole = await client.completions.create(**arguments(echo=True))
        assert whole.choices[0].text.startswith("One, two, three, four,")
        assert await text_of(await client.completions.create(**arguments(echo=True), stream=True)) == whole.choices[0].text

    asyncio.run(run())


def test_token_ids_are_a_prompt(client, http, server, arguments):
    prompt = arguments()["prompt"]
    counted = http.post("/openai/v1/tokenize", json={"model": server.chat_model, "prompt": prompt}).json()
    assert counted["count"] == len(counted["tokens"]) < counted["max_model_len"]
    back = http.post("/openai/v1/detokenize", json={"model": server.chat_model, "tokens": counted["tokens"]}).json()
    assert back == {"prompt": prompt, "content": prompt}
    by_ids = client.completions.create(**arguments(counted["tokens"]))
    by_text = client.completions.create(**arguments())
    assert by_ids.choices[0].text == by_text.choices[0].text
    assert by_ids.usage.prompt_tokens == by_text.usage.prompt_tokens == counted["count"]


def test_a_stream_can_be_closed_early(client, arguments):
    with client.completions.create(**arguments(max_tokens=200), stream=True) as stream:
        next(iter(stream))
    assert "five" in client.completions.create(**arguments()).choices[0].text


def test_an_error_names_the_field(client, arguments):
    with pytest.raises(BadRequestError) as caught:
        client.completions.create(**arguments(best_of=4))
    assert caught.value.param == "best_of"
