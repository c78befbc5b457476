"""Compares the transcriptions of an Outpost server with those of transformers: text, segment times and word times.

    python benches/peers/speech_clips.py /tmp/clips
    python benches/peers/transcription_equality.py /tmp/clips --base-url http://127.0.0.1:8080 --key KEY --model whisper-tiny.en

The reference is tests/fixtures/transcription_reference.json (see make_transcription_reference.py), which also says how
its numbers are made. Clips whose SHA-256 differs from the reference are refused: espeak-ng of another version speaks
differently. The request gives no language, so a multilingual model detects it. The temperature is 0.

The table has a line for each clip. `text` is the edit distance in words, 0 for the same text. `segments` is the largest
difference of a start or end in seconds, or `n/m` if the numbers of segments differ. `words` is the median difference of
the start of the words that both have. Exit status 1: a clip differs that has to be equal. These are the clips with a
settled greedy result. Of a clip of more than 30 s, the share `--long-errors` of its words may differ.
"""

import argparse
import collections
import difflib
import hashlib
import json
import pathlib
import statistics
import sys
import urllib.parse

import smoke
from audio_server import AudioServer, transcription
from smoke import ROOT

REFERENCE = ROOT / "tests/fixtures/transcription_reference.json"
LONGEST_WINDOW = 30.0
# Times come in steps of 0.02 s. Float arithmetic and rounding to two digits may differ.
TIME_TOLERANCE = 0.011
Line = collections.namedtuple("Line", "name group text segments words language required equal")


def word_distance(left, right):
    """The number of words to insert, delete or replace."""
    row = list(range(len(right) + 1))
    for index, word in enumerate(left, 1):
        previous, row[0] = row[0], index
        for column, other in enumerate(right, 1):
            previous, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, previous + (word != other))
    return row[-1]


def segment_difference(expected, segments):
    """The largest difference of a time in seconds, or None if the numbers of segments differ."""
    found = [(segment["start"], segment["end"]) for segment in segments]
    if len(found) != len(expected):
        return None
    return max((abs(a - b) for left, right in zip(expected, found) for a, b in zip(left[:2], right)), default=0.0)


def word_difference(expected, words):
    """The median difference of the starts of words that both have in the same order, or None without any."""
    left, right = [word[2].strip() for word in expected], [word["word"].strip() for word in words]
    blocks = difflib.SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks()
    pairs = [(expected[a + i][0], words[b + i]["start"]) for a, b, size in blocks for i in range(size)]
    return statistics.median(abs(a - b) for a, b in pairs if a is not None) if pairs else None


def compare(name, clip, expected, found, args):
    left, right = expected["text"].split(), found["text"].split()
    distance = word_distance(left, right)
    segments = segment_difference(expected["segments"], found["segments"])
    words = word_difference(expected["words"], found.get("words") or [])
    long = clip["seconds"] > LONGEST_WINDOW
    if long:
        equal = distance <= args.long_errors * max(len(left), 1)
    else:
        equal = expected["text"] == found["text"].strip() and segments is not None and segments <= TIME_TOLERANCE
    counts = f"{len(found['segments'])}/{len(expected['segments'])}"
    times = counts if segments is None else f"{segments:.2f}"
    detected = found.get("language") or ""
    language = "" if "language" not in expected else f"{expected['language']} {detected}"
    words = "" if words is None else f"{words:.2f}"
    return Line(name, ",".join(clip["groups"]), distance, times, words, language, expected["settled"], equal)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", type=pathlib.Path)
    parser.add_argument("--base-url", required=True, help="such as http://127.0.0.1:8080")
    parser.add_argument("--key", required=True)
    parser.add_argument("--model", required=True, help="ID on the server")
    parser.add_argument("--reference-model", help="name in the reference, else the ID")
    parser.add_argument("--long-errors", type=float, default=0.05, help="share of words that may differ in clips of more than 30 s")
    parser.add_argument("--reference", type=pathlib.Path, default=REFERENCE)
    parser.add_argument("--only", nargs="*", help="names of clips")
    parser.add_argument("--show", action="store_true", help="print both texts of clips that differ")
    if not smoke.IS_ON:
        return smoke.run(parser, check)
    server = AudioServer(pathlib.Path(smoke.models()) / "tiny-whisper", 1)
    write_smoke_reference(server, smoke.folder() / "reference.json")
    line = f"{{clips}} --base-url http://127.0.0.1:{server.port} --key {server.key} --model tiny-whisper"
    smoke.run(parser, check, line + " --reference {folder}/reference.json")


def write_smoke_reference(server, path):
    """Writes what the server itself makes of the clip, in the form of the reference."""
    [clip] = json.loads((smoke.clips() / "manifest.json").read_text())
    fields = {"model": server.model, "response_format": "verbose_json", "temperature": 0}
    found = transcription("127.0.0.1", server.port, server.key, smoke.clips() / "clip.wav", fields)
    segments = [[segment["start"], segment["end"]] for segment in found["segments"]]
    expected = {"text": found["text"].strip(), "segments": segments, "words": [], "settled": True}
    path.write_text(json.dumps({"models": {server.model: {clip["name"]: expected}}, "clips": {clip["name"]: clip}}))


def check(args):
    address = urllib.parse.urlsplit(args.base_url)
    reference = json.loads(args.reference.read_text())
    results = reference["models"][args.reference_model or args.model]
    lines = []
    print("| clip | groups | text | segments, s | words, s | language | required | equal |\n|---|---|---|---|---|---|---|---|")
    for name, expected in results.items():
        if args.only and name not in args.only:
            continue
        path, clip = args.clips / f"{name}.wav", reference["clips"][name]
        if hashlib.sha256(path.read_bytes()).hexdigest() != clip["sha256"]:
            print(f"| {name} | the clip differs from the reference's | | | | | | |")
            continue
        fields = {"model": args.model, "response_format": "verbose_json", "temperature": 0, "timestamp_granularities[]": ["segment", "word"]}
        found = transcription(address.hostname, address.port, args.key, path, fields)
        lines.append(compare(name, clip, expected, found, args))
        print("| " + " | ".join(str(value).lower() if isinstance(value, bool) else str(value) for value in lines[-1]) + " |", flush=True)
        if args.show and not lines[-1].equal:
            print(f"  transformers: {expected['text']}\n  outpost:      {found['text'].strip()}")
    required = [line for line in lines if line.required]
    print(f"\n{sum(line.equal for line in required)} of {len(required)} required clips are equal, {sum(line.text == 0 for line in lines)} of {len(lines)} have the same text.")
    if any(not line.equal for line in required):
        sys.exit(1)


if __name__ == "__main__":
    main()
