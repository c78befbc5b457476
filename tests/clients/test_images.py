"""Pictures as the openai package and plain HTTP ask for them."""

import base64
import io
import struct
import time
import zlib

import httpx
import openai
import pytest

SIZE = (64, 64)
# The least work that shows something.
QUICK = {"size": "64x64", "extra_body": {"steps": 2, "seed": 7}}


def png(width, height, pixel):
    """A PNG file of what `pixel(x, y)` says: three or four numbers."""
    channels = len(pixel(0, 0))
    rows = b"".join(b"\0" + b"".join(bytes(pixel(x, y)) for x in range(width)) for y in range(height))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", width, height, 8, {3: 2, 4: 6}[channels], 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def named(content, name="picture.png"):
    file = io.BytesIO(content)
    file.name = name
    return file


def size_of(file):
    """Width and height of a PNG."""
    assert file.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", file[16:24])


def files(answer):
    return [base64.b64decode(each.b64_json) for each in answer.data]


@pytest.fixture(scope="session")
def model(server):
    return server.image_model


@pytest.fixture
def generate(client, model):
    def ask(prompt="a red house", **more):
        return client.images.generate(model=model, prompt=prompt, **{**QUICK, **more})

    return ask


def test_one_picture(generate):
    answer = generate()
    [file] = files(answer)
    assert size_of(file) == SIZE
    assert (answer.size, answer.output_format, answer.background) == ("64x64", "png", "opaque")
    assert answer.data[0].seed == 7
    assert abs(answer.created - time.time()) < 600


def test_the_starter_model_with_nothing_else_said(client):
    answer = client.images.generate(model="pictogram", prompt="a red apple")
    assert size_of(files(answer)[0]) == SIZE
    again = client.images.generate(model="pictogram", prompt="a red apple", extra_body={"seed": answer.data[0].seed})
    assert files(again) == files(answer)


def test_a_strict_answer(strict, model):
    answer = strict.images.generate(model=model, prompt="a red house", **QUICK)
    assert size_of(files(answer)[0]) == SIZE
    assert answer.usage.total_tokens == 0


def test_a_seed_gives_its_picture_again(generate):
    first, second = files(generate(n=2))
    assert first != second
    assert files(generate(extra_body={"steps": 2, "seed": 8})) == [second]


@pytest.mark.parametrize("name,magic", [("png", b"\x89PNG"), ("jpeg", b"\xff\xd8\xff"), ("webp", b"RIFF")])
def test_formats(generate, name, magic):
    assert files(generate(output_format=name))[0].startswith(magic)


def test_links_need_no_key(generate, server):
    inline = files(generate(n=2))
    answer = generate(n=2, response_format="url")
    for item, picture in zip(answer.data, inline):
        assert item.b64_json is None
        reply = httpx.get(item.url)
        assert (reply.status_code, reply.headers["content-type"], reply.content) == (200, "image/png", picture)
        forged = httpx.get(item.url.replace("signature=", "signature=x"))
        assert (forged.status_code, forged.json()["error"]["code"]) == (403, "invalid_signature")


def test_bytes_where_they_are_accepted(http, mount, model):
    body = {"model": model, "prompt": "a red house", "size": "64x64", "steps": 2}
    reply = http.post(mount + "/images/generations", json=body, headers={"accept": "image/png"})
    assert (reply.status_code, reply.headers["content-type"]) == (200, "image/png")
    assert size_of(reply.content) == SIZE
    again = http.post(mount + "/images/generations", json={**body, "seed": int(reply.headers["x-outpost-seed"])})
    assert base64.b64decode(again.json()["data"][0]["b64_json"]) == reply.content


def test_a_stream(server, mount, model):
    client = server.client(mount)
    extra = {"steps": 4, "seed": 7}
    stream = client.images.generate(
        model=model, prompt="a red house", size="64x64", stream=True, partial_images=2, extra_body=extra)
    events = list(stream)
    kinds = [event.type for event in events]
    assert ("image_generation.progress" in kinds) == (mount == "/v1")
    partial = [event for event in events if event.type == "image_generation.partial_image"]
    assert [event.partial_image_index for event in partial] == list(range(len(partial)))
    assert kinds[-1] == "image_generation.completed" and kinds.count(kinds[-1]) == 1
    whole = client.images.generate(model=model, prompt="a red house", size="64x64", extra_body=extra)
    assert base64.b64decode(events[-1].b64_json) == files(whole)[0]
    assert events[-1].usage.total_tokens == 0


def test_a_strict_stream(strict, model):
    events = list(strict.images.generate(model=model, prompt="a house", stream=True, partial_images=1, **QUICK))
    assert events[-1].type == "image_generation.completed"


def test_an_edit(client, model):
    photo = png(80, 48, lambda x, y: (3 * x, 90, 30))
    white = png(80, 48, lambda x, y: (255,) * 3 if x < 40 else (0,) * 3)
    holes = png(80, 48, lambda x, y: (0, 0, 0, 0 if x < 40 else 255))

    def edit(image, **more):
        arguments = {"model": model, "prompt": "a blue house", "size": "64x64", "extra_body": {"steps": 4, "seed": 1}}
        return files(client.images.edit(image=image, **{**arguments, **more}))[0]

    whole = edit(named(photo))
    assert size_of(whole) == SIZE
    assert edit([named(photo)]) == whole, "a list of one"
    masked = edit(named(photo), mask=named(white))
    assert masked == edit(named(photo), mask=named(holes)) != whole
    events = list(client.images.edit(
        model=model, prompt="x", image=named(photo), size="64x64", stream=True, extra_body={"steps": 4}))
    assert events[-1].type == "image_edit.completed"
    with pytest.raises(openai.BadRequestError) as caught:
        edit([named(photo), named(photo)])
    assert caught.value.param == "image"


def test_a_variation(client, model):
    photo = png(64, 64, lambda x, y: (x, y, 99))
    answer = client.images.create_variation(
        model=model, image=named(photo), n=2, size="64x64", extra_body={"steps": 4, "seed": 1})
    first, second = files(answer)
    assert first != second and size_of(first) == SIZE


BAD = [
    ({"n": 0}, "n"),
    ({"n": 11}, "n"),
    ({"size": "large"}, "size"),
    ({"output_format": "gif"}, "output_format"),
    ({"background": "transparent"}, "background"),
    ({"style": "vivid"}, "style"),
    ({"extra_body": {"scheduler": "heun"}}, "scheduler"),
    ({"extra_body": {"steps": 0}}, "steps"),
    ({"extra_body": {"seed": -1}}, "seed"),
    ({"extra_body": {"lora": [{"name": "../x"}]}}, "lora[0].name"),
]


@pytest.mark.parametrize("more,param", BAD, ids=[f"{param}-{i}" for i, (_, param) in enumerate(BAD)])
def test_a_bad_field_is_named(generate, more, param):
    with pytest.raises(openai.BadRequestError) as caught:
        generate(**more)
    assert (caught.value.code, caught.value.param) == ("invalid_parameter", param)


def test_a_chat_model_paints_nothing(client, server):
    with pytest.raises(openai.BadRequestError) as caught:
        client.images.generate(model=server.chat_model, prompt="a house")
    assert caught.value.param == "model"


def test_an_unknown_model(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.images.generate(model="no-such-model", prompt="a house")
    assert caught.value.code == "model_not_found"


def test_pictures_are_counted(server, http, project, project_key, model):
    client = server.client(key=project_key["secret"])
    client.images.generate(model=model, prompt="a house", n=2, **QUICK)
    list(client.images.generate(model=model, prompt="a house", stream=True, **QUICK))
    with pytest.raises(openai.BadRequestError):
        client.images.generate(model=model, prompt="a house", size="large")
    usage = http.get(f"/v1/projects/{project}/usage", params={"group_by": "endpoint"}).json()
    assert (usage["requests"], usage["image_generations"], usage["tokens"]["total"]) == (3, 3, 0)
