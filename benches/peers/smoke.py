"""`--smoke`: a run of a benchmark that takes seconds and checks that the script still works. Its figures mean nothing.

Each script passes its parser to [`run`], with the command lines that `--smoke` stands for. A smoke run starts the binary
that `OUTPOST_BIN` names and compiles nothing. Its models are those of CI. What needs a package or program that is not
installed is left out, and a line says so.
"""

import atexit
import functools
import hashlib
import importlib.util
import json
import math
import os
import pathlib
import shlex
import shutil
import struct
import sys
import tempfile
import wave

ROOT = pathlib.Path(__file__).resolve().parents[2]
IS_ON = "--smoke" in sys.argv
RATE = 16_000


def few(usual, smallest):
    """A number that no option changes, and its value in a smoke run."""
    return smallest if IS_ON else usual


def lacks(name):
    """True in a smoke run without this package or program. In any other run, the script fails where it needs it."""
    if not IS_ON or importlib.util.find_spec(name) or shutil.which(name):
        return False
    skip(f"{name} is not installed")
    return True


@functools.cache
def skip(reason):
    """Says once that something is left out."""
    print(f"left out: {reason}", flush=True)


def finish():
    print("smoke run: done", flush=True)
    sys.exit()


def binary():
    return pathlib.Path(os.environ.get("OUTPOST_BIN", ROOT / "target/debug/outpost")).resolve()


@functools.cache
def folder():
    """A folder that exists until the end of the run."""
    path = tempfile.TemporaryDirectory()
    atexit.register(path.cleanup)
    return pathlib.Path(path.name)


@functools.cache
def models():
    sys.path.append(str(ROOT / "tests/clients"))
    from tiny_models import link_models

    return link_models(folder() / "models")


@functools.cache
def clips():
    """A folder as that of speech_clips.py, with one second of a tone."""
    path = folder() / "clips/clip.wav"
    path.parent.mkdir()
    samples = [round(8000 * math.sin(at * math.tau * 440 / RATE)) for at in range(RATE)]
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(struct.pack(f"<{RATE}h", *samples))
    row = {"name": "clip", "language": "en", "seconds": 1.0, "text": "a tone", "groups": ["english"]}
    row["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (path.parent / "manifest.json").write_text(json.dumps([row]))
    return path.parent


PLACES = {"{binary}": binary, "{models}": models, "{clips}": clips, "{folder}": folder}


def words(line):
    """The words of a command line, with the places of a smoke run."""
    for word in shlex.split(line):
        for name, place in PLACES.items():
            word = word.replace(name, str(place())) if name in word else word
        yield word


def run(parser, measure, *lines):
    """Calls `measure` with the arguments; in a smoke run, once for each of the command lines."""
    parser.add_argument("--smoke", action="store_true", help="check in seconds that the script works; the figures mean nothing")
    if not IS_ON:
        return measure(parser.parse_args())
    parser.format_help()
    for line in lines:
        print(f"smoke run: {line}", flush=True)
        measure(parser.parse_args([*words(line), "--smoke"]))
    finish()
