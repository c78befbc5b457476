//! Compares the audio that clients count with the recorded usage: mixed requests, clients that disconnect, and kills.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outpost_testing::fixtures::fixture;
use reqwest::Method;
use reqwest::blocking::Client;
use serde_json::{Value, json};

use crate::process::{ServerProcess, folder, output_text, run};
use crate::rng::TestRng;
use crate::tiny_model::TinyModel;
use crate::wait::until;
use crate::{tiny_kokoro, tiny_whisper};

const WHISPER: &str = "tiny-whisper";
const KOKORO: &str = "tiny-kokoro";
const CLIENTS: usize = 6;
const KILLS: u64 = 3;
const REQUESTS_BEFORE_A_KILL: usize = 70;
const DISCONNECTS: u64 = 40;
const TRANSCRIPTIONS: &str = "/v1/audio/transcriptions";
const SPEECH: &str = "/v1/audio/speech";
/// Milliseconds of the recording in the fixtures.
const RECORDING: u64 = 1500;
/// Repetitions of the recording in a request, at most, and in one whose client disconnects.
const REPETITIONS: u64 = 4;
const LONG_REPETITIONS: u64 = 60;
/// Bytes before the samples of a WAV file.
const WAV_HEADER: usize = 44;

/// Requests, and milliseconds of audio that was transcribed and generated.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Count {
    succeeded: u64,
    refused: u64,
    input: u64,
    output: u64,
}

impl Count {
    fn of(figures: &Value) -> Self {
        let millis = |name: &str| (figures["audio_processing"][name].as_f64().unwrap() * 1000.0).round() as u64;
        let requests = |outcome: &str| figures["requests_by_outcome"][outcome].as_u64().unwrap();
        Self {
            succeeded: requests("succeeded"),
            refused: requests("refused"),
            input: millis("input_seconds"),
            output: millis("output_seconds"),
        }
    }

    fn total(self) -> u64 {
        self.succeeded + self.refused
    }
}

/// The recording so many times, as a WAV file.
fn recording(repetitions: u64) -> Vec<u8> {
    let file = std::fs::read(fixture("audio/mono-8k.wav")).unwrap();
    let (head, samples) = file.split_at(WAV_HEADER);
    let samples = samples.repeat(usize::try_from(repetitions).unwrap());
    let mut head = head.to_vec();
    head[4..8].copy_from_slice(&u32::try_from(36 + samples.len()).unwrap().to_le_bytes());
    head[40..44].copy_from_slice(&u32::try_from(samples.len()).unwrap().to_le_bytes());
    [head, samples].concat()
}

/// A request's path, content type and body.
struct Request(&'static str, &'static str, Vec<u8>);

fn transcription(file: &[u8], fields: &[(&str, &str)]) -> Request {
    let field = |(name, value): &(&str, &str)| {
        format!("--x\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    let fields: String = [&[("model", WHISPER)], fields].concat().iter().map(field).collect();
    let head = "--x\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n";
    let body = [fields.as_bytes(), head.as_bytes(), file, b"\r\n--x--\r\n"].concat();
    Request(TRANSCRIPTIONS, "multipart/form-data; boundary=x", body)
}

fn speech(words: u64, format: &str) -> Request {
    let input = "ba sha ".repeat(usize::try_from(words).unwrap());
    let body = json!({ "model": KOKORO, "voice": "af_heart", "input": input, "response_format": format });
    Request(SPEECH, "application/json", body.to_string().into_bytes())
}

/// The status and the whole body; `None` if the connection breaks.
fn send(
    serving: &ServerProcess,
    client: &Client,
    key: &str,
    Request(path, kind, body): Request,
) -> Option<(u16, Vec<u8>)> {
    let request = client.post(format!("{}{path}", serving.url)).bearer_auth(key).header("content-type", kind);
    let mut response = request.body(body).send().ok()?;
    let mut bytes = Vec::new();
    response.read_to_end(&mut bytes).ok()?;
    Some((response.status().as_u16(), bytes))
}

/// Sends a random request and counts it; `None` if the connection breaks.
fn send_and_count(
    serving: &ServerProcess,
    client: &Client,
    key: &str,
    rng: &mut TestRng,
    count: &mut Count,
) -> Option<()> {
    let size = 1 + rng.below(REPETITIONS);
    match rng.below(5) {
        0 | 1 => {
            let stream = rng.below(2) == 0;
            let fields: &[(&str, &str)] = if stream { &[("stream", "true")] } else { &[] };
            let (status, body) = send(serving, client, key, transcription(&recording(size), fields))?;
            let text = String::from_utf8(body).unwrap();
            assert_eq!(status, 200, "{text}");
            assert!(!stream || text.contains("transcript.text.done"), "{text}");
            count.succeeded += 1;
            count.input += size * RECORDING;
        }
        format @ (2 | 3) => {
            let (format, header) = if format == 2 { ("pcm", 0) } else { ("wav", WAV_HEADER) };
            let (status, body) = send(serving, client, key, speech(8 * size, format))?;
            assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
            count.succeeded += 1;
            count.output += ((body.len() - header) as u64 / 2 * 1000).div_ceil(24_000);
        }
        _ => {
            let (status, body) = send(serving, client, key, transcription(b"not audio", &[]))?;
            assert_eq!(status, 400, "{}", String::from_utf8_lossy(&body));
            count.refused += 1;
        }
    }
    Some(())
}

/// Sends a long request and disconnects; `false` if the server is gone.
fn disconnect(serving: &ServerProcess, key: &str, rng: &mut TestRng) -> bool {
    let Request(path, kind, body) = match rng.below(2) {
        0 => transcription(&recording(LONG_REPETITIONS), &[]),
        _ => speech(400, "pcm"),
    };
    let Ok(mut connection) = TcpStream::connect(serving.url.strip_prefix("http://").unwrap()) else { return false };
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {key}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    if connection.write_all(head.as_bytes()).and_then(|()| connection.write_all(&body)).is_err() {
        return false;
    }
    std::thread::sleep(Duration::from_millis(20 + rng.below(80)));
    true
}

struct Key {
    id: String,
    secret: String,
}

fn create(serving: &ServerProcess, path: &str, body: &Value) -> Value {
    serving.request(Method::POST, path, Some(body)).json().unwrap()
}

fn create_key(serving: &ServerProcess, project: &str) -> Key {
    let key = create(serving, "/v1/api-keys", &json!({ "name": "k", "project_id": project }));
    Key { id: key["id"].as_str().unwrap().to_owned(), secret: key["secret"].as_str().unwrap().to_owned() }
}

/// The recorded usage by the ID of the API key.
fn recorded(serving: &ServerProcess, project: &str) -> BTreeMap<String, Value> {
    let path = format!("/v1/projects/{project}/usage?group_by=api_key_id");
    let report: Value = serving.request(Method::GET, &path, None).json().unwrap();
    let groups = report["groups"].as_array().unwrap().iter();
    groups.map(|group| (group["api_key_id"].as_str().unwrap().to_owned(), group.clone())).collect()
}

/// Runs the clients, and another one that disconnects, until the server is killed after so many answers.
fn until_killed(serving: &ServerProcess, keys: &[Key], disconnecting: &Key, seed: u64, counts: &mut [Count]) {
    let answered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let answered = &answered;
        for (index, (key, count)) in keys.iter().zip(counts).enumerate() {
            scope.spawn(move || {
                let (client, mut rng) = (Client::new(), TestRng(seed * 100 + index as u64));
                while send_and_count(serving, &client, &key.secret, &mut rng, count).is_some() {
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(move || {
            let mut rng = TestRng(seed);
            while disconnect(serving, &disconnecting.secret, &mut rng) {}
        });
        until(|| "enough answers", || answered.load(Ordering::Relaxed) >= REQUESTS_BEFORE_A_KILL);
        serving.signal("KILL");
    });
}

#[test]
fn every_second_of_audio_is_recorded_once_although_the_process_is_killed() {
    let folder = folder(&TinyModel::default());
    tiny_whisper::write(&folder.path().join("models"), WHISPER, true);
    tiny_kokoro::write(&folder.path().join("models"), KOKORO);
    let mut serving = ServerProcess::start(folder.path(), &[]);
    let project = create(&serving, "/v1/projects", &json!({ "name": "audio" }))["id"].as_str().unwrap().to_owned();
    let keys: Vec<Key> = (0..CLIENTS).map(|_| create_key(&serving, &project)).collect();
    let disconnecting = create_key(&serving, &project);
    let mut counts = vec![Count::default(); CLIENTS];
    for round in 0..KILLS {
        until_killed(&serving, &keys, &disconnecting, round, &mut counts);
        serving.wait(Duration::from_secs(10));
        serving = ServerProcess::start(folder.path(), &[]);
        let recorded = recorded(&serving, &project);
        for (key, count) in keys.iter().zip(&mut counts) {
            let found = recorded.get(&key.id).map(Count::of).unwrap_or_default();
            // The request in flight may be recorded although its response was not received.
            if found.total() == count.total() {
                assert_eq!(found, *count);
            } else {
                assert_eq!(found.total(), count.total() + 1, "{found:?}, answered {count:?}");
                assert!(found.input >= count.input && found.output >= count.output, "{found:?}, answered {count:?}");
                assert!(found.input <= count.input + REPETITIONS * RECORDING, "{found:?}, answered {count:?}");
            }
            *count = found;
        }
    }
    let total = |name: fn(&Count) -> u64| counts.iter().map(name).sum::<u64>();
    assert!(total(|count| count.total()) >= KILLS * REQUESTS_BEFORE_A_KILL as u64, "{counts:?}");
    assert!(total(|count| count.input) > 0 && total(|count| count.output) > 0, "{counts:?}");
    check_disconnects(&serving, folder.path(), &project);
    drop(serving);
    let check = run(folder.path(), &["check"]);
    assert!(check.status.success(), "{}", output_text(&check));
}

/// Each client that disconnects is recorded, and charged for no more than its request.
fn check_disconnects(serving: &ServerProcess, folder: &Path, project: &str) {
    let (key, mut rng) = (create_key(serving, project), TestRng(7));
    (0..DISCONNECTS).for_each(|_| assert!(disconnect(serving, &key.secret, &mut rng)));
    let requests = || recorded(serving, project).get(&key.id).map_or(0, |group| group["requests"].as_u64().unwrap());
    until(|| format!("{} of {DISCONNECTS}", requests()), || requests() == DISCONNECTS);
    let file = folder.join("usage.jsonl");
    let export = run(folder, &["usage", "export", "--project", project, "--format", "jsonl", file.to_str().unwrap()]);
    assert!(export.status.success(), "{}", output_text(&export));
    let text = std::fs::read_to_string(&file).unwrap();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let rows: Vec<&Value> = rows.iter().filter(|row| row["api_key_id"] == key.id.as_str()).collect();
    assert_eq!(rows.len() as u64, DISCONNECTS);
    assert!(rows.iter().any(|row| row["outcome"] == "abandoned"));
    let longest = (LONG_REPETITIONS * RECORDING) as f64 / 1000.0;
    for row in rows {
        let seconds = row["audio_input_seconds"].as_f64().unwrap();
        assert!(["abandoned", "succeeded"].contains(&row["outcome"].as_str().unwrap()), "{row}");
        assert!(seconds < longest || (row["outcome"] == "succeeded" && seconds <= longest), "{row}");
    }
}
