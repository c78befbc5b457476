import asyncio

import pytest


def content(completion, index=0):
    return completion.choices[index].message.content


def test_a_response_without_streaming(client, chat_arguments, server):
    response = client.chat.completions.create(**chat_arguments())
    choice = response.choices[0]
    assert response.id.startswith("chatcmpl-")
    assert response.model == server.chat_model
    assert response.created > 1_700_000_000
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    usage = response.usage
    assert usage.prompt_tokens > 0 and 0 < usage.completion_tokens <= 24
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_a_response_passes_strict_validation(strict, chat_arguments):
    assert strict.chat.completions.create(**chat_arguments()).object == "chat.completion"


def test_roles_and_content_parts(client, chat_arguments):
    messages = [
        {"role": "developer", "content": "You are brief."},
        {"role": "user", "content": [{"type": "text", "text": "Say "}, {"type": "text", "text": "hello."}]},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Again."},
    ]
    assert content(client.chat.completions.create(**chat_arguments(messages=messages))) is not None


def check_stream(chunks, whole):
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
    assert len({chunk.id for chunk in chunks}) == 1
    summary = [chunk for chunk in chunks if chunk.choices]
    assert summary[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in summary[1:])
    text = "".join(chunk.choices[0].delta.content or "" for chunk in summary)
    assert text == content(whole)
    reasons = [chunk.choices[0].finish_reason for chunk in summary if chunk.choices[0].finish_reason]
    assert reasons == [whole.choices[0].finish_reason]
    last = chunks[-1]
    assert last.choices == []
    assert last.usage.total_tokens == whole.usage.total_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])


@pytest.mark.parametrize("name", ["client", "strict"])
def test_a_stream_equals_the_response_without_streaming(name, request, chat_arguments):
    client = request.getfixturevalue(name)
    whole = client.chat.completions.create(**chat_arguments())
    stream = client.chat.completions.create(**chat_arguments(), stream=True, stream_options={"include_usage": True})
    check_stream(list(stream), whole)


def test_without_include_usage_every_chunk_has_a_choice(client, chat_arguments):
    chunks = list(client.chat.completions.create(**chat_arguments(), stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


def test_the_stream_helper(client, chat_arguments):
    # The helper raises an error for a truncated response, so this one ends with a stop string.
    stop = content(client.chat.completions.create(**chat_arguments()))[6:10]
    whole = client.chat.completions.create(**chat_arguments(stop=stop))
    with client.chat.completions.stream(**chat_arguments(stop=stop), stream_options={"include_usage": True}) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(pieces) == content(final) == content(whole)
    assert final.usage.total_tokens == whole.usage.total_tokens


def test_a_stream_can_be_closed_early(client, chat_arguments):
    with client.chat.completions.create(**chat_arguments(max_completion_tokens=200), stream=True) as stream:
        next(iter(stream))
    assert content(client.chat.completions.create(**chat_arguments()))


def test_n_sets_the_number_of_choices(client, chat_arguments):
    response = client.chat.completions.create(**chat_arguments(n=2, temperature=1, seed=1))
    assert [choice.index for choice in response.choices] == [0, 1]
    assert all(choice.message.content for choice in response.choices)
    assert response.usage.completion_tokens > 1


def test_streamed_choices_are_kept_separate(client, chat_arguments):
    chunks = client.chat.completions.create(**chat_arguments(n=2, temperature=1, seed=1), stream=True)
    texts = {}
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    assert sorted(texts) == [0, 1] and all(texts.values())


def test_a_seed_reproduces(client, chat_arguments):
    def summary(seed):
        return content(client.chat.completions.create(**chat_arguments("Tell me a story.", temperature=1.2, seed=seed)))

    assert summary(7) == summary(7)
    assert len({summary(seed) for seed in range(1, 5)}) > 1


def test_temperature_zero_is_deterministic(client, chat_arguments):
    assert len({content(client.chat.completions.create(**chat_arguments(seed=seed))) for seed in (1, 2, 3)}) == 1


def test_logprobs(client, chat_arguments):
    response = client.chat.completions.create(**chat_arguments(logprobs=True, top_logprobs=3))
    tokens = response.choices[0].logprobs.content
    assert 0 < len(tokens) <= response.usage.completion_tokens
    for token in tokens:
        assert token.logprob <= 0
        tops = [top.logprob for top in token.top_logprobs]
        assert len(tops) == 3 and tops == sorted(tops, reverse=True)
        assert token.token == token.top_logprobs[0].token, "temperature 0 takes the most probable token"
    spelled = b"".join(bytes(token.bytes) for token in tokens).decode(errors="replace")
    assert spelled == content(response)


def test_logprobs_in_a_stream(client, chat_arguments):
    chunks = client.chat.completions.create(**chat_arguments(logprobs=True, top_logprobs=1), stream=True)
    tokens = [t for c in chunks if c.choices and c.choices[0].logprobs for t in c.choices[0].logprobs.content]
    whole = client.chat.completions.create(**chat_arguments(logprobs=True, top_logprobs=1)).choices[0].logprobs.content
    assert [token.token for token in tokens] == [token.token for token in whole]


def test_generation_stops_before_the_stop_string(client, chat_arguments):
    free = content(client.chat.completions.create(**chat_arguments()))
    assert len(free) > 12, free
    stop = free[6:10]
    for stops in (stop, ["never to be said", stop]):
        response = client.chat.completions.create(**chat_arguments(stop=stops))
        assert content(response) == free[: free.index(stop)]
        assert response.choices[0].finish_reason == "stop"


def test_a_stop_string_is_never_streamed(client, chat_arguments):
    free = content(client.chat.completions.create(**chat_arguments()))
    stop = free[6:10]
    chunks = client.chat.completions.create(**chat_arguments(stop=stop), stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == free[: free.index(stop)]


def test_logit_bias_forces_and_forbids(client, chat_arguments):
    forced = client.chat.completions.create(**chat_arguments(logit_bias={"5000": 100}, max_completion_tokens=4, logprobs=True))
    assert len({token.token for token in forced.choices[0].logprobs.content}) == 1
    forbidden = client.chat.completions.create(**chat_arguments(logit_bias={"5000": -100}, max_completion_tokens=4, logprobs=True))
    only = forced.choices[0].logprobs.content[0].token
    assert only not in [token.token for token in forbidden.choices[0].logprobs.content]


@pytest.mark.parametrize("name", ["max_completion_tokens", "max_tokens"])
def test_a_token_limit_applies(client, chat_arguments, name):
    arguments = chat_arguments("Tell me a very long story about the sea.")
    del arguments["max_completion_tokens"]
    response = client.chat.completions.create(**arguments, **{name: 5})
    assert response.usage.completion_tokens == 5
    assert response.choices[0].finish_reason == "length"


def test_the_raw_response_has_a_request_id(client, chat_arguments):
    raw = client.chat.completions.with_raw_response.create(**chat_arguments())
    assert raw.headers["x-request-id"].startswith("req_")
    parsed = raw.parse()
    assert content(parsed) and parsed._request_id == raw.headers["x-request-id"]


def test_eight_concurrent_chats(server, chat_arguments):
    async def all_of_them():
        async with server.async_client() as client:
            jobs = [client.chat.completions.create(**chat_arguments(f"Say the number {i}.")) for i in range(8)]
            return await asyncio.gather(*jobs)

    responses = asyncio.run(all_of_them())
    assert len({response.id for response in responses}) == 8
    assert all(content(response) for response in responses)


def test_eight_concurrent_streams(server, chat_arguments):
    async def one(client, i):
        stream = await client.chat.completions.create(**chat_arguments(f"Say the number {i}."), stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

    async def all_of_them():
        async with server.async_client("/openai/v1") as client:
            return await asyncio.gather(*(one(client, i) for i in range(8)))

    assert all(asyncio.run(all_of_them()))


def test_the_mounts_differ_only_in_format(http, chat_arguments):
    ours, exact = (http.post(mount + "/chat/completions", json=chat_arguments()).json() for mount in ("/v1", "/openai/v1"))
    assert (ours["object"], ours["status"]) == ("service.resource", "succeeded")
    assert exact["object"] == "chat.completion" and "status" not in exact
    assert ours["choices"] == exact["choices"] and ours["usage"].keys() == exact["usage"].keys()
    assert ours["id"].startswith("chatcmpl-") and exact["id"].startswith("chatcmpl-")


def test_a_stream_ends_with_done(http, chat_arguments, mount):
    response = http.post(mount + "/chat/completions", json=chat_arguments(stream=True))
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-request-id"].startswith("req_")
    data = [line for line in response.text.splitlines() if line.startswith("data:")]
    assert data[-1] == "data: [DONE]"
