"""Image generation with the openai package and plain HTTP."""

import base64
import io
import struct
import time
import zlib

import httpx
import openai
import pytest

SIZE = (64, 64)
# The fewest steps that are useful.
QUICK = {"size": "64x64", "extra_body": {"steps": 2, "seed": 7}}


def png(width, height, pixel):
    """A PNG file. `pixel(x, y)` returns three or four channel values."""
    channels = len(pixel(0, 0))
    rows = b"".join(b"\0" + b"".join(bytes(pixel(x, y)) for x in range(width)) for y in range(height))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", width, height, 8, {3: 2, 4: 6}[channels], 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def named_file(content, name="image.png"):
    file = io.BytesIO(content)
    file.name = name
    return file


def size_of(file):
    """Width and height of a PNG."""
    assert file.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", file[16:24])


def decoded_images(response):
    return [base64.b64decode(item.b64_json) for item in response.data]


@pytest.fixture(scope="session")
def model(server):
    return server.image_model


@pytest.fixture
def generate(client, model):
    def generate(prompt="a red house", **more):
        return client.images.generate(model=model, prompt=prompt, **{**QUICK, **more})

    return generate


def test_one_image(generate):
    response = generate()
    [file] = decoded_images(response)
    assert size_of(file) == SIZE
    assert (response.size, response.output_format, response.background) == ("64x64", "png", "opaque")
    assert response.data[0].seed == 7
    assert abs(response.created - time.time()) < 600


def test_the_starter_model_with_defaults(client):
    response = client.images.generate(model="pictogram", prompt="a red apple")
    assert size_of(decoded_images(response)[0]) == SIZE
    again = client.images.generate(model="pictogram", prompt="a red apple", extra_body={"seed": response.data[0].seed})
    assert decoded_images(again) == decoded_images(response)


def test_a_response_passes_strict_validation(strict, model):
    response = strict.images.generate(model=model, prompt="a red house", **QUICK)
    assert size_of(decoded_images(response)[0]) == SIZE
    assert response.usage.total_tokens == 0


def test_a_seed_reproduces_its_image(generate):
    first, second = decoded_images(generate(n=2))
    assert first != second
    assert decoded_images(generate(extra_body={"steps": 2, "seed": 8})) == [second]


@pytest.mark.parametrize("name,magic", [("png", b"\x89PNG"), ("jpeg", b"\xff\xd8\xff"), ("webp", b"RIFF")])
def test_formats(generate, name, magic):
    assert decoded_images(generate(output_format=name))[0].startswith(magic)


def test_signed_urls_need_no_key(generate, server):
    inline = decoded_images(generate(n=2))
    response = generate(n=2, response_format="url")
    for item, image in zip(response.data, inline):
        assert item.b64_json is None
        fetched = httpx.get(item.url)
        assert (fetched.status_code, fetched.headers["content-type"], fetched.content) == (200, "image/png", image)
        forged = httpx.get(item.url.replace("signature=", "signature=x"))
        assert (forged.status_code, forged.json()["error"]["code"]) == (403, "invalid_signature")


def test_bytes_are_returned_if_accepted(http, mount, model):
    body = {"model": model, "prompt": "a red house", "size": "64x64", "steps": 2}
    response = http.post(mount + "/images/generations", json=body, headers={"accept": "image/png"})
    assert (response.status_code, response.headers["content-type"]) == (200, "image/png")
    assert size_of(response.content) == SIZE
    again = http.post(mount + "/images/generations", json={**body, "seed": int(response.headers["x-outpost-seed"])})
    assert base64.b64decode(again.json()["data"][0]["b64_json"]) == response.content


def test_a_stream(server, mount, model):
    client = server.client(mount)
    extra = {"steps": 4, "seed": 7}
    stream = client.images.generate(
        model=model, prompt="a red house", size="64x64", stream=True, partial_images=2, extra_body=extra)
    events = list(stream)
    kinds = [event.type for event in events]
    # Only clients without OpenAI's SDK get the progress, on `/v1`.
    assert "image_generation.progress" not in kinds
    partial = [event for event in events if event.type == "image_generation.partial_image"]
    assert [event.partial_image_index for event in partial] == list(range(len(partial)))
    assert kinds[-1] == "image_generation.completed" and kinds.count(kinds[-1]) == 1
    whole = client.images.generate(model=model, prompt="a red house", size="64x64", extra_body=extra)
    assert base64.b64decode(events[-1].b64_json) == decoded_images(whole)[0]
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
        return decoded_images(client.images.edit(image=image, **{**arguments, **more}))[0]

    whole = edit(named_file(photo))
    assert size_of(whole) == SIZE
    assert edit([named_file(photo)]) == whole, "a list of one image equals the image"
    masked = edit(named_file(photo), mask=named_file(white))
    assert masked == edit(named_file(photo), mask=named_file(holes)) != whole
    events = list(client.images.edit(
        model=model, prompt="x", image=named_file(photo), size="64x64", stream=True, extra_body={"steps": 4}))
    assert events[-1].type == "image_edit.completed"
    with pytest.raises(openai.BadRequestError) as caught:
        edit([named_file(photo), named_file(photo)])
    assert caught.value.param == "image"


def test_a_variation(client, model):
    photo = png(64, 64, lambda x, y: (x, y, 99))
    response = client.images.create_variation(
        model=model, image=named_file(photo), n=2, size="64x64", extra_body={"steps": 4, "seed": 1})
    first, second = decoded_images(response)
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
def test_an_invalid_field_is_named(generate, more, param):
    with pytest.raises(openai.BadRequestError) as caught:
        generate(**more)
    assert (caught.value.code, caught.value.param) == ("invalid_parameter", param)


def test_a_chat_model_cannot_generate_images(client, server):
    with pytest.raises(openai.BadRequestError) as caught:
        client.images.generate(model=server.chat_model, prompt="a house")
    assert caught.value.param == "model"


def test_an_unknown_model(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.images.generate(model="no-such-model", prompt="a house")
    assert caught.value.code == "model_not_found"


def test_images_are_counted(server, http, project, project_key, model):
    client = server.client(key=project_key["secret"])
    client.images.generate(model=model, prompt="a house", n=2, **QUICK)
    list(client.images.generate(model=model, prompt="a house", stream=True, **QUICK))
    with pytest.raises(openai.BadRequestError):
        client.images.generate(model=model, prompt="a house", size="large")
    usage = http.get(f"/v1/projects/{project}/usage", params={"group_by": "endpoint"}).json()
    assert (usage["requests"], usage["image_generations"], usage["tokens"]["total"]) == (3, 3, 0)
