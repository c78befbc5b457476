import asyncio

import pytest


def content(completion, index=0):
    return completion.choices[index].message.content


def test_a_whole_answer(client, ask, server):
    answer = client.chat.completions.create(**ask())
    choice = answer.choices[0]
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == server.chat_model
    assert answer.created > 1_700_000_000
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.prompt_tokens > 0 and 0 < usage.completion_tokens <= 24
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_strict_whole_answer(strict, ask):
    assert strict.chat.completions.create(**ask()).object == "chat.completion"


def test_roles_and_content_parts(client, ask):
    messages = [
        {"role": "developer", "content": "You are brief."},
        {"role": "user", "content": [{"type": "text", "text": "Say "}, {"type": "text", "text": "hello."}]},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Again."},
    ]
    assert content(client.chat.completions.create(**ask(messages=messages))) is not None


def check_stream(chunks, whole):
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
    assert len({chunk.id for chunk in chunks}) == 1
    told = [chunk for chunk in chunks if chunk.choices]
    assert told[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in told[1:])
    text = "".join(chunk.choices[0].delta.content or "" for chunk in told)
    assert text == content(whole)
    reasons = [chunk.choices[0].finish_reason for chunk in told if chunk.choices[0].finish_reason]
    assert reasons == [whole.choices[0].finish_reason]
    last = chunks[-1]
    assert last.choices == []
    assert last.usage.total_tokens == whole.usage.total_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])


@pytest.mark.parametrize("name", ["client", "strict"])
def test_a_stream_tells_the_same_as_the_whole_answer(name, request, ask):
    client = request.getfixturevalue(name)
    whole = client.chat.completions.create(**ask())
    stream = client.chat.completions.create(**ask(), stream=True, stream_options={"include_usage": True})
    check_stream(list(stream), whole)


def test_without_include_usage_every_chunk_has_a_choice(client, ask):
    chunks = list(client.chat.completions.create(**ask(), stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


def test_the_stream_helper(client, ask):
    # The helper refuses an answer that was cut by its length, so this one ends by a stop text.
    stop = content(client.chat.completions.create(**ask()))[6:10]
    whole = client.chat.completions.create(**ask(stop=stop))
    with client.chat.completions.stream(**ask(stop=stop), stream_options={"include_usage": True}) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(pieces) == content(final) == content(whole)
    assert final.usage.total_tokens == whole.usage.total_tokens


def test_a_stream_can_be_left(client, ask):
    with client.chat.completions.create(**ask(max_completion_tokens=200), stream=True) as stream:
        next(iter(stream))
    assert content(client.chat.completions.create(**ask()))


def test_n_gives_as_many_choices(client, ask):
    answer = client.chat.completions.create(**ask(n=2, temperature=1, seed=1))
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert all(choice.message.content for choice in answer.choices)
    assert answer.usage.completion_tokens > 1


def test_n_in_a_stream_keeps_the_choices_apart(client, ask):
    chunks = client.chat.completions.create(**ask(n=2, temperature=1, seed=1), stream=True)
    texts = {}
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    assert sorted(texts) == [0, 1] and all(texts.values())


def test_a_seed_reproduces(client, ask):
    def told(seed):
        return content(client.chat.completions.create(**ask("Tell me a story.", temperature=1.2, seed=seed)))

    assert told(7) == told(7)
    assert len({told(seed) for seed in range(1, 5)}) > 1


def test_temperature_zero_is_deterministic(client, ask):
    assert len({content(client.chat.completions.create(**ask(seed=seed))) for seed in (1, 2, 3)}) == 1


def test_logprobs(client, ask):
    answer = client.chat.completions.create(**ask(logprobs=True, top_logprobs=3))
    tokens = answer.choices[0].logprobs.content
    assert 0 < len(tokens) <= answer.usage.completion_tokens
    for token in tokens:
        assert token.logprob <= 0
        tops = [top.logprob for top in token.top_logprobs]
        assert len(tops) == 3 and tops == sorted(tops, reverse=True)
        assert token.token == token.top_logprobs[0].token, "temperature 0 takes the likeliest"
    spelled = b"".join(bytes(token.bytes) for token in tokens).decode(errors="replace")
    assert spelled == content(answer)


def test_logprobs_in_a_stream(client, ask):
    chunks = client.chat.completions.create(**ask(logprobs=True, top_logprobs=1), stream=True)
    tokens = [t for c in chunks if c.choices and c.choices[0].logprobs for t in c.choices[0].logprobs.content]
    whole = client.chat.completions.create(**ask(logprobs=True, top_logprobs=1)).choices[0].logprobs.content
    assert [token.token for token in tokens] == [token.token for token in whole]


def test_stop_ends_before_the_stop_text(client, ask):
    free = content(client.chat.completions.create(**ask()))
    assert len(free) > 12, free
    stop = free[6:10]
    for stops in (stop, ["never to be said", stop]):
        answer = client.chat.completions.create(**ask(stop=stops))
        assert content(answer) == free[: free.index(stop)]
        assert answer.choices[0].finish_reason == "stop"


def test_stop_text_never_shows_in_a_stream(client, ask):
    free = content(client.chat.completions.create(**ask()))
    stop = free[6:10]
    chunks = client.chat.completions.create(**ask(stop=stop), stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == free[: free.index(stop)]


def test_logit_bias_forces_and_forbids(client, ask):
    forced = client.chat.completions.create(**ask(logit_bias={"5000": 100}, max_completion_tokens=4, logprobs=True))
    assert len({token.token for token in forced.choices[0].logprobs.content}) == 1
    forbidden = client.chat.completions.create(**ask(logit_bias={"5000": -100}, max_completion_tokens=4, logprobs=True))
    only = forced.choices[0].logprobs.content[0].token
    assert only not in [token.token for token in forbidden.choices[0].logprobs.content]


@pytest.mark.parametrize("name", ["max_completion_tokens", "max_tokens"])
def test_a_token_limit_holds(client, ask, name):
    arguments = ask("Tell me a very long story about the sea.")
    del arguments["max_completion_tokens"]
    answer = client.chat.completions.create(**arguments, **{name: 5})
    assert answer.usage.completion_tokens == 5
    assert answer.choices[0].finish_reason == "length"


def test_the_raw_response_has_a_request_id(client, ask):
    raw = client.chat.completions.with_raw_response.create(**ask())
    assert raw.headers["x-request-id"].startswith("req_")
    parsed = raw.parse()
    assert content(parsed) and parsed._request_id == raw.headers["x-request-id"]


def test_eight_chats_at_once(server, ask):
    async def all_of_them():
        async with server.async_client() as client:
            jobs = [client.chat.completions.create(**ask(f"Say the number {i}.")) for i in range(8)]
            return await asyncio.gather(*jobs)

    answers = asyncio.run(all_of_them())
    assert len({answer.id for answer in answers}) == 8
    assert all(content(answer) for answer in answers)


def test_eight_streams_at_once(server, ask):
    async def one(client, i):
        stream = await client.chat.completions.create(**ask(f"Say the number {i}."), stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

    async def all_of_them():
        async with server.async_client("/openai/v1") as client:
            return await asyncio.gather(*(one(client, i) for i in range(8)))

    assert all(asyncio.run(all_of_them()))


def test_the_two_mounts_differ_in_shape_only(http, ask):
    ours, exact = (http.post(mount + "/chat/completions", json=ask()).json() for mount in ("/v1", "/openai/v1"))
    assert (ours["object"], ours["status"]) == ("service.resource", "succeeded")
    assert exact["object"] == "chat.completion" and "status" not in exact
    assert ours["choices"] == exact["choices"] and ours["usage"].keys() == exact["usage"].keys()
    assert ours["id"].startswith("chatcmpl-") and exact["id"].startswith("chatcmpl-")


def test_a_stream_ends_with_done(http, ask, mount):
    reply = http.post(mount + "/chat/completions", json=ask(stream=True))
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["x-request-id"].startswith("req_")
    data = [line for line in reply.text.splitlines() if line.startswith("data:")]
    assert data[-1] == "data: [DONE]"
