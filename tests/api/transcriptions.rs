//! Transcriptions and translations with a tiny random model.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::audio::{ENDPOINTS, send};
use crate::images::assert_refused;
use crate::server::{Response, Server};
use crate::tiny_model::TinyModel;
use crate::tiny_whisper;
use crate::upload::{Part, form};
use crate::wait::until;

/// A multilingual model, and one that knows only English.
pub const WHISPER: &str = "tiny-whisper";
const ENGLISH: &str = "tiny-whisper.en";
const PATH: &str = "/v1/audio/transcriptions";

pub fn start_server() -> Server {
    Server::start_configured(&TinyModel::default(), |config| {
        tiny_whisper::write(&config.paths.models, WHISPER, true);
        tiny_whisper::write(&config.paths.models, ENGLISH, false);
        config.max_audio_bytes = 16 << 20;
        config.sandbox = Some(env!("CARGO_BIN_EXE_outpost").into());
    })
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(outpost_testing::fixtures::fixture("audio").join(name)).unwrap()
}

/// Speech of 1.5 seconds, 8 kHz, so many times.
pub fn speech(times: usize) -> Vec<u8> {
    let file = fixture("mono-8k.wav");
    let (head, samples) = file.split_at(44);
    let data = samples.repeat(times);
    let mut wave = head.to_vec();
    wave[4..8].copy_from_slice(&u32::try_from(36 + data.len()).unwrap().to_le_bytes());
    wave[40..44].copy_from_slice(&u32::try_from(data.len()).unwrap().to_le_bytes());
    [wave, data].concat()
}

fn transcribe(server: &Server, path: &str, key: &str, file: &[u8], fields: &[(&str, &str)]) -> Response {
    let model = if fields.iter().any(|(name, _)| *name == "model") { None } else { Some(("model", WHISPER)) };
    // The file comes first.
    let mut parts: Vec<Part<'_>> = vec![("file", Some("audio.txt"), file)];
    parts.extend(fields.iter().copied().chain(model).map(|(name, value)| (name, None, value.as_bytes())));
    send(server, path, key, &parts)
}

fn ok(server: &Server, file: &[u8], fields: &[(&str, &str)]) -> Value {
    transcribe(server, PATH, &server.admin, file, fields).ok()
}

/// The named events of a stream.
fn events(response: &Response) -> Vec<Value> {
    assert_eq!(response.status, 200, "{}", response.text);
    let data = response.text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|text| serde_json::from_str(text).unwrap()).collect()
}

#[test]
fn each_format_has_the_same_text() {
    let server = start_server();
    let file = speech(24);
    let verbose = ok(&server, &file, &[("response_format", "verbose_json"), ("language", "en")]);
    let text = verbose["text"].as_str().unwrap();
    assert!(text.len() > 3 && text == text.trim(), "{verbose}");
    assert_eq!((&verbose["task"], &verbose["language"]), (&json!("transcribe"), &json!("english")));
    assert_eq!(
        (&verbose["duration"], &verbose["usage"]),
        (&json!(36.0), &json!({ "type": "duration", "seconds": 36.0 }))
    );
    assert!(verbose["id"].as_str().unwrap().starts_with("transcript_") && verbose["object"] == "service.resource");
    let segments = verbose["segments"].as_array().unwrap();
    let joined: String = segments.iter().map(|segment| segment["text"].as_str().unwrap()).collect();
    assert_eq!(joined.trim(), text);
    for (index, segment) in segments.iter().enumerate() {
        assert_eq!(segment["id"], index);
        let (start, end) = (segment["start"].as_f64().unwrap(), segment["end"].as_f64().unwrap());
        assert!((0.0..=36.0).contains(&start) && start <= end, "{segment}");
        assert!(segment["seek"].is_u64() && segment["tokens"].is_array(), "{segment}");
        for number in ["temperature", "avg_logprob", "compression_ratio", "no_speech_prob"] {
            assert!(segment[number].is_number(), "{segment}");
        }
    }
    assert!(segments.iter().any(|segment| segment["seek"].as_u64().unwrap() > 1000), "there is more than one window");
    assert_eq!(verbose.get("words"), None);

    let json = ok(&server, &file, &[("language", "English")]);
    assert_eq!((&json["text"], json.get("logprobs"), json.get("segments")), (&verbose["text"], None, None));
    let plain =
        |format| transcribe(&server, PATH, &server.admin, &file, &[("response_format", format), ("language", "en")]);
    assert_eq!(plain("text").text, format!("{text}\n"));
    assert_eq!(plain("text").header("content-type"), Some("text/plain; charset=utf-8"));
    let (srt, vtt) = (plain("srt").text, plain("vtt").text);
    assert!(srt.starts_with("1\n00:00:") && srt.contains(" --> 00:00:") && srt.ends_with("\n\n"), "{srt}");
    assert!(vtt.starts_with("WEBVTT\n\n00:00:"), "{vtt}");
    assert_eq!(srt.matches(" --> ").count(), segments.len());
}

#[test]
fn words_and_log_probabilities_are_there_if_requested() {
    let server = start_server();
    let file = speech(2);
    let fields = [("response_format", "verbose_json"), ("timestamp_granularities[]", "word"), ("language", "en")];
    let words = ok(&server, &file, &fields);
    assert_eq!(words.get("segments"), None);
    let list = words["words"].as_array().unwrap();
    let joined: String = list.iter().map(|word| word["word"].as_str().unwrap()).collect();
    assert_eq!(joined, words["text"].as_str().unwrap().replace(' ', ""));
    assert!(list.iter().all(|word| word["start"].as_f64().unwrap() <= word["end"].as_f64().unwrap()));
    let both = ok(&server, &file, &[&fields[..], &[("timestamp_granularities[]", "segment")]].concat());
    assert!(both["segments"].is_array() && both["words"] == words["words"]);

    let logprobs = ok(&server, &file, &[("include[]", "logprobs"), ("language", "en")]);
    let tokens = logprobs["logprobs"].as_array().unwrap();
    let text: String = tokens.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(text.trim(), logprobs["text"].as_str().unwrap());
    assert!(tokens.iter().all(|token| token["logprob"].as_f64().unwrap() <= 0.0 && token["bytes"].is_array()));
}

#[test]
fn a_stream_has_the_text_in_pieces_and_then_as_a_whole() {
    let server = start_server();
    let file = speech(24);
    let text = ok(&server, &file, &[("language", "en")])["text"].clone();
    for mount in ["/v1", "/openai/v1"] {
        let path = format!("{mount}/audio/transcriptions");
        let fields = [("stream", "true"), ("language", "en"), ("include[]", "logprobs")];
        let response = transcribe(&server, &path, &server.admin, &file, &fields);
        let all = events(&response);
        assert!(response.text.starts_with("event: transcript.text.delta\n"), "{}", response.text);
        let (done, deltas) = all.split_last().unwrap();
        assert!(deltas.iter().all(|event| event["type"] == "transcript.text.delta"), "{all:?}");
        let joined: String = deltas.iter().map(|event| event["delta"].as_str().unwrap()).collect();
        assert_eq!((&done["type"], &done["text"]), (&json!("transcript.text.done"), &text));
        assert_eq!(joined.trim_end(), done["text"]);
        let count = |event: &Value| event["logprobs"].as_array().unwrap().len();
        assert_eq!(deltas.iter().map(count).sum::<usize>(), count(done));
        let usage = (mount == "/v1").then(|| json!({ "type": "duration", "seconds": 36.0 }));
        assert_eq!((done.get("usage"), done.get("language")), (usage.as_ref(), None));
    }
    let fields = [("stream", "True"), ("response_format", "verbose_json"), ("timestamp_granularities[]", "word")];
    let all = events(&transcribe(&server, PATH, &server.admin, &file, &fields));
    let segments: Vec<_> = all.iter().filter(|event| event["type"] == "transcript.text.segment").collect();
    assert!(!segments.is_empty() && segments.iter().all(|event| event["words"].is_array()), "{all:?}");
    assert_eq!(segments[0]["id"], "seg_0");
    let whole = ok(&server, &file, &[("response_format", "verbose_json")]);
    assert_eq!(all.last().unwrap()["language"], whole["language"]);
}

/// An MP4 file whose packets claim to last 32 samples each, instead of 1024.
fn with_short_packets(mut file: Vec<u8>) -> Vec<u8> {
    let at = file.windows(4).rposition(|found| found == b"stts").unwrap() + 8;
    let entries = u32::from_be_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    for entry in 0..entries {
        let delta = at + 4 + 8 * entry + 4;
        file[delta..delta + 4].copy_from_slice(&32_u32.to_be_bytes());
    }
    file
}

#[test]
fn a_file_that_lies_about_its_length_is_metered_as_it_is_decoded() {
    let server = start_server();
    let (project, _, key) = server.tenant("t");
    let body = transcribe(&server, PATH, &key, &with_short_packets(fixture("aac.m4a")), &[("language", "en")]).ok();
    let seconds = body["usage"]["seconds"].as_f64().unwrap();
    assert!((3.1..3.3).contains(&seconds), "{body}");
    let usage = server.get(&format!("/v1/projects/{project}/usage")).ok();
    assert_eq!(usage["audio_processing"]["input_seconds"], seconds);
}

#[test]
fn openais_mount_has_openais_bodies() {
    let server = start_server();
    for endpoint in ENDPOINTS {
        let path = format!("/openai/v1/audio/{endpoint}");
        let body = transcribe(&server, &path, &server.admin, &speech(1), &[]).ok();
        let fields: Vec<&String> = body.as_object().unwrap().keys().collect();
        let expected = if endpoint == "transcriptions" { vec!["text", "usage"] } else { vec!["text"] };
        assert_eq!(fields, expected, "{body}");
    }
    let verbose = [("response_format", "verbose_json")];
    let translation = transcribe(&server, "/v1/audio/translations", &server.admin, &speech(1), &verbose).ok();
    assert_eq!((&translation["task"], &translation["language"]), (&json!("translate"), &json!("english")));
}

#[test]
fn languages_that_a_model_does_not_know_are_refused() {
    let server = start_server();
    let refused = |fields: &[(&str, &str)], param, words| {
        assert_refused(&transcribe(&server, PATH, &server.admin, &speech(1), fields), param, words);
    };
    refused(&[("language", "fr")], "language", "en, de");
    refused(&[("language", "de"), ("model", ENGLISH)], "language", "It knows: en");
    let path = "/v1/audio/translations";
    let response = transcribe(&server, path, &server.admin, &speech(1), &[("model", ENGLISH)]);
    assert_refused(&response, "model", "knows only English");
    ok(&server, &speech(1), &[("model", ENGLISH), ("language", "en-GB")]);
    let detected = ok(&server, &speech(1), &[("response_format", "verbose_json")]);
    assert!(["english", "german"].contains(&detected["language"].as_str().unwrap()), "{detected}");
}

#[test]
fn what_cannot_be_decoded_is_refused_and_silence_has_no_text() {
    let server = start_server();
    let refused = |file: &[u8], words| {
        let response = transcribe(&server, PATH, &server.admin, file, &[]);
        assert_refused(&response, "file", words);
    };
    refused(b"", "empty");
    refused(b"This is text.", "not audio");
    refused(&fixture("windows-media.wma"), "the container is not supported (ASF: WMA or WMV); send WAV");
    let avi = [&b"RIFF\0\0\0\0AVI LIST"[..], &fixture("mono-mp3-16k.mp3")].concat();
    refused(&avi, "the container is not supported (AVI); send WAV");
    refused(&fixture("no-sound.mp4"), "no audio track");
    refused(&speech(1)[..44], "no samples");
    refused(&speech(401), "longer than 600 seconds");
    let mut silence = speech(4);
    silence[44..].fill(0);
    let quiet = ok(&server, &silence, &[("response_format", "verbose_json")]);
    assert_eq!((&quiet["text"], &quiet["language"], &quiet["segments"]), (&json!(""), &json!("unknown"), &json!([])));
    assert_eq!(quiet["duration"], 6.0);
    for name in ["opus-silk.ogg", "mono-mp3-16k.mp3", "aac.m4a", "media-recorder.webm", "speech.flac"] {
        assert!(ok(&server, &fixture(name), &[])["usage"]["seconds"].as_f64().unwrap() > 0.4, "{name}");
    }
}

#[test]
fn a_recording_that_was_cut_off_or_has_opposite_channels_has_the_same_text() {
    let server = start_server();
    let plain = speech(2);
    let transcript = |file: &[u8]| ok(&server, file, &[("language", "en")]);
    let expected = transcript(&plain);
    assert!(!expected["text"].as_str().unwrap().is_empty());
    let mut cut = plain.clone();
    cut[4..8].fill(0);
    cut[40..44].fill(0);
    assert_eq!(transcript(&cut)["text"], expected["text"]);
    assert_eq!(transcript(&cut)["usage"], expected["usage"]);

    let mut stereo = plain[..44].to_vec();
    stereo[22] = 2;
    stereo[32] = 4;
    for sample in plain[44..].chunks(2) {
        let sample = i16::from_le_bytes(sample.try_into().unwrap());
        stereo.extend([sample, sample.saturating_neg()].map(i16::to_le_bytes).concat());
    }
    let length = u32::try_from(stereo.len() - 44).unwrap();
    stereo[40..44].copy_from_slice(&length.to_le_bytes());
    assert_eq!(transcript(&stereo)["text"], expected["text"]);
}

/// Requests and milliseconds of audio.
fn usage(server: &Server, project: &str) -> (u64, u64, Value) {
    let usage = server.get(&format!("/v1/projects/{project}/usage")).ok();
    let seconds = usage["audio_processing"]["input_seconds"].as_f64().unwrap();
    assert_eq!(usage["audio_processing"]["output_seconds"], 0.0);
    (usage["requests"].as_u64().unwrap(), (seconds * 1000.0).round() as u64, usage["requests_by_outcome"].clone())
}

#[test]
fn exactly_the_length_of_transcribed_files_is_metered() {
    let server = start_server();
    let (project, _, key) = server.tenant("t");
    let mut seconds = 0.0;
    for (path, file, fields) in [
        (PATH, speech(1), &[][..]),
        (PATH, fixture("speech.flac"), &[("stream", "true")]),
        ("/v1/audio/translations", fixture("opus-silk.ogg"), &[]),
    ] {
        let response = transcribe(&server, path, &key, &file, fields);
        let body = if fields.is_empty() { response.ok() } else { events(&response).pop().unwrap() };
        seconds += body["usage"]["seconds"].as_f64().unwrap();
    }
    assert_eq!(transcribe(&server, PATH, &key, b"no audio", &[]).status, 400);
    let (requests, millis, outcomes) = usage(&server, &project);
    assert_eq!((requests, millis), (4, (seconds * 1000.0).round() as u64));
    assert_eq!((&outcomes["succeeded"], &outcomes["refused"]), (&json!(3), &json!(1)));
    let grouped = server.get(&format!("/v1/projects/{project}/usage?group_by=endpoint,model")).ok();
    let group =
        grouped["groups"].as_array().unwrap().iter().find(|group| group["endpoint"] == "POST /audio/translations");
    assert_eq!(group.unwrap()["model"], WHISPER);
    let csv = server.raw(
        Method::GET,
        &format!("/v1/projects/{project}/usage"),
        Some(&server.admin),
        &[("accept", "text/csv")],
        None,
    );
    assert!(csv.text.lines().next().unwrap().ends_with("audio_seconds,audio_input_seconds,audio_output_seconds"));
}

#[test]
fn seconds_of_audio_are_limited_per_minute() {
    let server = start_server();
    let (project, _, key) = server.tenant("t");
    server.patch(&format!("/v1/projects/{project}/rate-limits"), &json!({ "audio_seconds_per_minute": 9 })).ok();
    let sent = |times| transcribe(&server, PATH, &key, &speech(times), &[]);
    let first = sent(4);
    assert_eq!((first.status, first.header("x-ratelimit-limit-audio-seconds")), (200, Some("9")), "{}", first.text);
    let refused = sent(4);
    assert_eq!(refused.error_fields(), (429, "rate_limit_exceeded".to_owned(), None));
    assert!(refused.text.contains("9 seconds of audio per minute"), "{}", refused.text);
    assert!((15..=20).contains(&refused.header("retry-after").unwrap().parse::<u64>().unwrap()));
    assert_eq!(refused.header("x-ratelimit-remaining-audio-seconds"), Some("3"));
    assert_eq!(sent(2).status, 200, "a refused file takes nothing");
    server.clock.pass(Duration::from_secs(60));
    assert_eq!(sent(10).status, 200, "a longer file is admitted when the bucket is full");
    server.clock.pass(Duration::from_secs(60));
    assert_eq!(sent(1).status, 200);
    let (requests, millis, outcomes) = usage(&server, &project);
    assert_eq!((requests, millis, &outcomes["limited"]), (5, 25_500, &json!(1)));
}

#[test]
fn a_client_that_leaves_ends_its_transcription() {
    let server = start_server();
    let (project, _, key) = server.tenant("t");
    let parts = form("xYzZY", &[("model", None, WHISPER.as_bytes()), ("file", Some("a.wav"), &speech(390))]);
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\ncontent-type: multipart/form-data; \
         boundary=xYzZY\r\ncontent-length: {}\r\n\r\n",
        parts.len()
    );
    let mut connection = std::net::TcpStream::connect(server.address).unwrap();
    std::io::Write::write_all(&mut connection, &[head.as_bytes(), &parts].concat()).unwrap();
    std::thread::sleep(Duration::from_millis(150));
    drop(connection);
    until(|| "the departure is recorded", || usage(&server, &project).0 == 1);
    let (_, millis, outcomes) = usage(&server, &project);
    assert!(millis < 600_000, "{millis}");
    assert_eq!(outcomes["abandoned"], 1, "{outcomes}");
    ok(&server, &speech(1), &[]);
}
