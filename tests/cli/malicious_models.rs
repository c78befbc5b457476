//! Malicious model files that try to crash or hang the server or to exhaust its memory. Whatever they do to the sandbox
//! process, the server responds with an error that names the model, and keeps serving other models.
#![expect(clippy::disallowed_methods, reason = "a test measures real time")]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outpost::engine::{
    Engine, InputType, LoadError, Message, ModelKind, OutputSpec, PreprocessError, PromptError, PromptOptions,
    Settings, TextFormat, TokenizeLimits,
};
use outpost_testing::fixtures::fixture;
use outpost_testing::huggingface_folder;
use outpost_testing::test_clock::TestClock;
use serde_json::{Value, json};

use crate::children;
use crate::rng::TestRng;
use crate::tiny_model::{self, CHATML, TinyModel};

/// More than the ten seconds that the sandbox allows, for slow machines.
const TIMEOUT: Duration = Duration::from_secs(25);

/// An engine that uses sandboxes, as the server does.
fn engine(folder: &Path) -> Engine {
    engine_at(folder, Arc::default())
}

fn engine_at(folder: &Path, clock: Arc<TestClock>) -> Engine {
    let sandbox = Some(env!("CARGO_BIN_EXE_outpost").into());
    let settings = Settings { sandbox, speculate: false, ..Settings::new(folder, 1 << 30) };
    Engine::start(settings, clock).unwrap()
}

fn chat(folder: &Path, name: &str, template: &str) {
    let template = Some(&*template.to_owned().leak());
    tiny_model::write(folder, name, &TinyModel { template, ..TinyModel::default() });
}

/// The length of a message's prompt, or the error.
fn prompt(engine: &Engine, id: &str) -> Result<usize, String> {
    let model = engine.models().load(id).map_err(|error| {
        assert!(matches!(error, LoadError::Unusable { .. }), "{id}: {error}");
        error.to_string()
    })?;
    match model.prompt(&[Message::new("user", "aaaa hello")]) {
        Ok(ids) => Ok(ids.len()),
        Err(PromptError::Refused(message)) => panic!("{id}: {message}"),
        Err(error) => Err(error.to_string()),
    }
}

/// Nested `depth` deep by `{% set x = [x] %}`.
fn nested(depth: usize, then: &str) -> String {
    let grow = "{% set n.x = [n.x] %}".repeat(50);
    format!("{{% set n = namespace(x=0) %}}{{% for i in range({}) %}}{grow}{{% endfor %}}{then}", depth / 50)
}

/// A string that is doubled `times` times.
fn doubled(times: usize, doubling: &str) -> String {
    format!(
        "{{% set n = namespace(x='aaaaaaaa') %}}{{% for i in range({times}) %}}{doubling}{{% endfor %}}{{{{ n.x|length }}}}"
    )
}

/// Templates that exhaust a process's stack or memory, by name.
fn templates() -> Vec<(&'static str, String)> {
    let cycle = "{% set ns=namespace() %}{% set ns.x=ns %}";
    let lists = "{% set n = namespace(x=[1,2,3,4,5,6,7,8]) %}{% for i in range(60) %}";
    vec![
        ("cycle shown", format!("{cycle}{{{{ ns }}}}")),
        ("cycle as JSON", format!("{cycle}{{{{ ns|tojson }}}}")),
        ("cycle compared", format!("{cycle}{{% set o=namespace() %}}{{% set o.x=o %}}{{{{ ns == o }}}}")),
        ("cycle sorted", format!("{cycle}{{{{ [ns, ns]|sort }}}}")),
        ("cycle made unique", format!("{cycle}{{{{ [ns, ns]|unique }}}}")),
        ("cycle joined", format!("{cycle}{{{{ [ns]|join }}}}")),
        ("cycle in a list", "{% set ns=namespace() %}{% set ns.x=[[ns]] %}{{ ns.x }}".to_owned()),
        ("cycle through two", "{% set a=namespace() %}{% set b=namespace(x=a) %}{% set a.x=b %}{{ a }}".to_owned()),
        ("deep list shown", nested(100_000, "{{ n.x }}")),
        ("deep list as JSON", nested(100_000, "{{ n.x|tojson }}")),
        ("deep list compared", nested(100_000, "{{ n.x == [n.x] }}")),
        ("deep list dropped", nested(200_000, "{% set n.x = 1 %}")),
        ("long sum", format!("{{{{ {}1 }}}}", "1+".repeat(20_000))),
        ("long filter", format!("{{{{ 1{} }}}}", "|abs".repeat(50_000))),
        ("deep parentheses", format!("{{{{ {}1{} }}}}", "(".repeat(50_000), ")".repeat(50_000))),
        ("deep brackets", format!("{{{{ {}1{} }}}}", "[".repeat(50_000), "]".repeat(50_000))),
        ("deep not", format!("{{{{ {}1 }}}}", "not ".repeat(100_000))),
        ("deep if", format!("{}{}", "{% if 1 %}".repeat(20_000), "{% endif %}".repeat(20_000))),
        ("doubled by ~", doubled(60, "{% set n.x = n.x ~ n.x %}")),
        ("doubled by +", doubled(60, "{% set n.x = n.x + n.x %}")),
        ("doubled by join", doubled(60, "{% set n.x = [n.x, n.x]|join %}")),
        ("doubled by replace", doubled(60, "{% set n.x = n.x|replace('a', 'aa') %}")),
        ("doubled by a captured block", doubled(60, "{% set y %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = y %}")),
        ("doubled list", format!("{lists}{{% set n.x = n.x + n.x %}}{{% endfor %}}{{{{ n.x|length }}}}")),
        ("sliced wide", "{{ [1]|slice(999999999)|list|length }}".to_owned()),
        ("batched wide", "{{ [1]|batch(999999999, 0)|list|length }}".to_owned()),
        ("formatted wide", "{{ '{:>999999999}'.format(1)|length }}{{ '%999999999d' % 1 }}".to_owned()),
        ("centered wide", "{{ 'a'.center(999999999)|length }}{{ 'a'.ljust(999999999)|length }}".to_owned()),
    ]
}

#[test]
fn no_template_crashes_the_server() {
    let dir = tempfile::tempdir().unwrap();
    chat(dir.path(), "sound", CHATML);
    let all = templates();
    for (index, (_, template)) in all.iter().enumerate() {
        chat(dir.path(), &format!("m{index}"), template);
    }
    let engine = engine(dir.path());
    let sound = prompt(&engine, "sound").unwrap();
    let mut failed = 0;
    for (index, (name, _)) in all.iter().enumerate() {
        let id = format!("m{index}");
        let begun = Instant::now();
        let outcome = prompt(&engine, &id);
        assert!(begun.elapsed() < TIMEOUT, "{name} took {:?}", begun.elapsed());
        eprintln!("{name}: {outcome:?} in {:?}", begun.elapsed());
        failed += usize::from(outcome.is_err());
        // A failure does not disable the model or affect other models.
        assert_eq!(prompt(&engine, "sound"), Ok(sound), "after {name}");
        engine.models().unload(&id).unwrap();
    }
    assert!(failed >= 20, "{failed} of {} failed", all.len());
}

/// A folder's tokenizer after `change`.
fn tokenizer(folder: &Path, change: impl FnOnce(&mut Value)) {
    let path = folder.join("tokenizer.json");
    let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut json);
    fs::write(path, json.to_string()).unwrap();
}

fn replace(start: &str, content: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": start}, "content": content})
}

fn sequence(steps: Vec<Value>) -> Value {
    json!({"type": "Sequence", "normalizers": steps})
}

/// Normalizers that expand a few letters to gigabytes or read out of bounds.
fn normalizers() -> Vec<(&'static str, Value)> {
    let megabyte = "b".repeat(1 << 20);
    let map = |bytes: &[u8]| json!({"type": "Precompiled", "precompiled_charsmap": STANDARD.encode(bytes)});
    vec![
        ("26 doublings", sequence(vec![replace("a", "aa"); 26])),
        ("replaced by megabytes", sequence(vec![replace("a", &megabyte), replace("b", &megabyte)])),
        ("megabytes put before", sequence(vec![json!({"type": "Prepend", "prepend": megabyte}); 8])),
        ("megabytes between letters", sequence(vec![replace("", &megabyte), replace("", &megabyte)])),
        ("a table that is too short", map(&[0xFF, 0xFF, 0xFF, 0x7F, 0, 0, 0, 0])),
        ("a table that leads outside", map(&[&[4, 0, 0, 0], [0xFF; 4].as_slice(), b"x\0"].concat())),
        (
            "a regular expression that backtracks",
            json!({"type": "Replace", "pattern": {"Regex": "(a|a)*(a|a)*(a|a)*$x"}, "content": ""}),
        ),
        ("60 nested sequences", (0..60).fold(replace("a", "b"), |inner, _| sequence(vec![inner]))),
    ]
}

#[test]
fn no_chat_tokenizer_crashes_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let all = normalizers();
    huggingface_folder::model(dir.path(), "sound", "llama-tied");
    for (index, (_, normalizer)) in all.iter().enumerate() {
        let folder = huggingface_folder::model(dir.path(), &format!("m{index}"), "llama-tied");
        tokenizer(&folder, |json| json["normalizer"] = normalizer.clone());
    }
    let tokens = |count: usize| {
        let one = |id: usize| {
            json!({"id": 34 + id, "content": format!("<{id}>"), "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false})
        };
        (0..count).map(one).collect::<Vec<_>>()
    };
    let folder = huggingface_folder::model(dir.path(), "many", "llama-tied");
    tokenizer(&folder, |json| json["added_tokens"].as_array_mut().unwrap().extend(tokens(200_000)));
    let folder = huggingface_folder::model(dir.path(), "long", "llama-tied");
    tokenizer(&folder, |json| json["added_tokens"][3]["content"] = "x".repeat(32_000).into());
    let folder = huggingface_folder::model(dir.path(), "deep", "llama-tied");
    let deep = format!("{}{}", "[".repeat(1 << 20), "]".repeat(1 << 20));
    fs::write(folder.join("tokenizer.json"), format!("{{\"decoder\":{{\"type\":\"ByteLevel\"}},\"model\":{deep}}}"))
        .unwrap();
    let engine = engine(dir.path());
    let sound = prompt(&engine, "sound").unwrap();
    let ids = (0..all.len()).map(|index| (format!("m{index}"), all[index].0));
    let others = ["many", "long", "deep"].map(|id| (id.to_owned(), id));
    for (id, name) in ids.chain(others) {
        let begun = Instant::now();
        let outcome = prompt(&engine, &id);
        eprintln!("{name}: {outcome:?} in {:?}", begun.elapsed());
        assert!(begun.elapsed() < TIMEOUT, "{name} took {:?}", begun.elapsed());
        assert_eq!(prompt(&engine, "sound"), Ok(sound), "after {name}");
        if ["many", "long", "deep"].contains(&name) {
            assert!(outcome.is_err(), "{name}: {outcome:?}");
        }
        engine.models().unload(&id).unwrap();
    }
}

#[test]
fn no_encoder_tokenizer_crashes_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = fixture("encoders/bert-mean");
    let model = |name: &str, change: &dyn Fn(&mut Value)| {
        let folder = dir.path().join(name);
        outpost_testing::fixtures::copy_folder(&fixture, &folder);
        tokenizer(&folder, |json| change(json));
    };
    model("sound", &|_| ());
    model("doubles", &|json| json["normalizer"] = sequence(vec![replace("a", "aa"); 28]));
    let ids: Vec<u32> = vec![0; 1_000_000];
    let sep = json!({"id": "[SEP]", "ids": ids, "tokens": vec!["[SEP]"; 1_000_000]});
    model("around", &|json| {
        let piece = json!({"SpecialToken": {"id": "[SEP]", "type_id": 0}});
        let text = json!({"Sequence": {"id": "A", "type_id": 0}});
        let single: Vec<Value> = std::iter::once(text).chain(vec![piece; 100]).collect();
        json["post_processor"] = json!({"type": "TemplateProcessing", "single": single, "pair": [],
            "special_tokens": {"[SEP]": sep}});
    });
    let engine = engine(dir.path());
    let embed = |id: &str| -> Result<usize, String> {
        let model = engine.models().load_encoder(id, ModelKind::Embedding).map_err(|error| error.to_string())?;
        let texts = model.encode(&["aaaa hello"], InputType::Unspecified, true, &TokenizeLimits::default());
        texts.map(|texts| texts[0].0.ids.len()).map_err(|stopped| {
            assert!(matches!(stopped, PreprocessError::Crashed | PreprocessError::TimedOut(_)), "{stopped}");
            stopped.to_string()
        })
    };
    let sound = embed("sound").unwrap();
    for id in ["doubles", "around"] {
        let begun = Instant::now();
        let outcome = embed(id);
        assert!(begun.elapsed() < TIMEOUT, "{id} took {:?}", begun.elapsed());
        eprintln!("{id}: {outcome:?} in {:?}", begun.elapsed());
        assert!(outcome.is_err(), "{id}: {outcome:?}");
        assert_eq!(embed("sound"), Ok(sound), "after {id}");
    }
}

#[test]
fn a_template_that_takes_too_long_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    // Lists of the same lists are compared as trees.
    let slow = "{% set ns = namespace(a=[0], b=[0]) %}{% for i in range(40) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ [ns.a].count(ns.b) }}";
    chat(dir.path(), "slow", slow);
    chat(dir.path(), "sound", CHATML);
    let engine = engine(dir.path());
    let model = engine.models().load("slow").unwrap();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| model.prompt(&[Message::new("user", "hello")]));
        // Other requests do not wait for it.
        assert!(prompt(&engine, "sound").is_ok() && !waiting.is_finished());
        assert_eq!(waiting.join().unwrap(), Err(PromptError::PreprocessError(PreprocessError::TimedOut(10))));
    });
    assert!(begun.elapsed() < TIMEOUT, "{:?}", begun.elapsed());
    // Work for a disconnected client is killed at the timeout even if the template never checks for cancellation.
    let request = Arc::new(());
    let bound = TokenizeLimits::default().with_request(&request);
    drop(request);
    assert!(model.prompt_within(&[Message::new("user", "hello")], &[], &PromptOptions::default(), &bound).is_err());
}

/// A request that crashes the process fails alone; concurrent requests complete.
#[test]
fn other_requests_complete_while_one_crashes_the_sandbox() {
    let dir = tempfile::tempdir().unwrap();
    let bomb = "{% if 'boom' in messages[0].content %}{% set ns=namespace() %}{% set ns.x=ns %}{{ ns ~ 1 }}{% endif %}";
    chat(dir.path(), "m", &format!("{bomb}{CHATML}"));
    let engine = engine(dir.path());
    let model = engine.models().load("m").unwrap();
    let expected = model.prompt(&[Message::new("user", "hello")]).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (model, expected) = (&model, &expected);
            scope.spawn(move || {
                for _ in 0..10 {
                    if thread == 0 {
                        let ended = model.prompt(&[Message::new("user", "boom")]);
                        assert_eq!(ended, Err(PromptError::PreprocessError(PreprocessError::Crashed)));
                    } else {
                        assert_eq!(model.prompt(&[Message::new("user", "hello")]).as_ref(), Ok(expected));
                    }
                }
            });
        }
    });
}

/// The grammar library recurses as deep as the longest token.
#[test]
fn a_vocabulary_with_a_very_long_token_supports_structured_output() {
    let dir = tempfile::tempdir().unwrap();
    let long: &str = "x".repeat(400_000).leak();
    let markers = vec![(long, 1), ("twice", 1), ("twice", 1)].leak();
    tiny_model::write(dir.path(), "m", &TinyModel { markers, ..TinyModel::default() });
    let engine = engine(dir.path());
    let model = engine.models().load("m").unwrap();
    assert!(model.compile_grammar(&OutputSpec { text: TextFormat::Object, ..OutputSpec::default() }).is_ok());
}

/// The sandbox and the in-process interpreter give the same prompts and errors.
#[test]
fn the_sandbox_gives_the_same_prompts() {
    let dir = tempfile::tempdir().unwrap();
    chat(dir.path(), "m", CHATML);
    chat(dir.path(), "refuses", "{{ raise_exception('Roles must alternate') }}");
    chat(dir.path(), "torn", "{% for %}");
    huggingface_folder::model(dir.path(), "folder", "llama-tied");
    let sandboxed = Engine::start(Settings::new(dir.path(), 1 << 30), Arc::new(TestClock::default())).unwrap();
    let in_process = engine(dir.path());
    let messages = ["hello <|im_end|> \u{FDD0}", "", "Grüße 🦀\n\n12345", &"long text ".repeat(20_000)];
    for id in ["m", "refuses", "torn", "folder"] {
        let [one, other] = [&sandboxed, &in_process].map(|engine| {
            let model = engine.models().load(id)?;
            let prompts = messages.map(|message| model.prompt(&[Message::new("user", message)]));
            Ok::<_, LoadError>((prompts, model.encode("hello <|im_end|>"), model.vocabulary()))
        });
        assert_eq!(one, other, "{id}");
    }
}

/// The peak memory of a process in MB.
fn peak_memory_mb(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or_default() / 1024
}

/// Loads 2,800 mutated models: `cargo test --release --test engine mutated_model_files -- --ignored --nocapture`.
#[test]
#[ignore = "takes minutes; prints figures"]
fn mutated_model_files_only_cause_errors() {
    const EACH: u64 = 700;
    let dir = tempfile::tempdir().unwrap();
    let parts = templates().into_iter().map(|(_, template)| template).filter(|template| template.len() < 500);
    let templates: Vec<String> = parts.chain([CHATML.to_owned()]).collect();
    let steps: Vec<Value> =
        normalizers().into_iter().map(|(_, step)| step).filter(|step| step.to_string().len() < 5000).collect();
    let gguf = tiny_model::bytes(&TinyModel::default());
    let clock = Arc::new(TestClock::default());
    let engine = engine_at(dir.path(), clock.clone());
    let done = std::sync::atomic::AtomicBool::new(false);
    let (mut counts, mut slowest) = ([0u64; 3], Duration::ZERO);
    let maximum = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut maximum = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                maximum =
                    children::of(std::process::id()).into_iter().map(peak_memory_mb).chain([maximum]).max().unwrap();
                std::thread::sleep(Duration::from_millis(2));
            }
            maximum
        });
        for seed in 0..4 * EACH {
            let mut rng = TestRng(seed);
            let mut below = |end: usize| rng.below(end as u64) as usize;
            let id = format!("m{seed}");
            match seed % 4 {
                0 => {
                    let mut text: Vec<char> = templates[below(templates.len())].chars().collect();
                    for _ in 0..1 + below(3) {
                        let other: Vec<char> = templates[below(templates.len())].chars().collect();
                        let (at, start) = (below(text.len() + 1), below(other.len()));
                        let length = below(40).min(other.len() - start);
                        text.splice(at..(at + below(20)).min(text.len()), other[start..start + length].to_vec());
                    }
                    chat(dir.path(), &id, &text.into_iter().collect::<String>());
                }
                1 => {
                    let folder = huggingface_folder::model(dir.path(), &id, "llama-tied");
                    let picked: Vec<Value> = (0..1 + below(6)).map(|_| steps[below(steps.len())].clone()).collect();
                    tokenizer(&folder, |json| json["normalizer"] = sequence(picked));
                    flip(&folder.join("tokenizer.json"), below(3), &mut below);
                }
                2 => {
                    let folder = huggingface_folder::model(dir.path(), &id, "llama-tied");
                    let files = [
                        "config.json",
                        "tokenizer_config.json",
                        "model.safetensors.index.json",
                        "model-00001-of-00004.safetensors",
                    ];
                    flip(&folder.join(files[below(4)]), 1 + below(6), &mut below);
                }
                _ => {
                    let mut bytes = gguf.clone();
                    (0..1 + below(6)).for_each(|_| bytes[below(9_000)] = below(256) as u8);
                    fs::create_dir_all(dir.path().join(&id)).unwrap();
                    fs::write(dir.path().join(&id).join("m.gguf"), bytes).unwrap();
                }
            }
            // The folder is scanned at most once a second.
            clock.advance(Duration::from_secs(2));
            let begun = Instant::now();
            let model = engine.models().load(&id);
            assert_ne!(model.as_ref().err(), Some(&LoadError::NotFound), "{id}");
            let outcome = model.map(|model| model.prompt(&[Message::new("user", "aaaa hello")]).is_ok());
            counts[match outcome {
                Ok(true) => 0,
                Ok(false) => 1,
                Err(_) => 2,
            }] += 1;
            slowest = slowest.max(begun.elapsed());
            let _ = engine.models().unload(&id);
            fs::remove_dir_all(dir.path().join(&id)).unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        watch.join().unwrap()
    });
    let [whole, prompts, loads] = counts;
    println!("{} variants: {whole} work, {prompts} fail at the prompt, {loads} at the load", 4 * EACH);
    println!(
        "slowest {slowest:?}; most memory: the server {} MB, a process {maximum} MB",
        peak_memory_mb(std::process::id())
    );
    assert!(slowest < TIMEOUT && maximum < 600, "{slowest:?}, {maximum} MB");
}

/// Changes so many bytes of a file.
fn flip(path: &Path, count: usize, below: &mut dyn FnMut(usize) -> usize) {
    let mut bytes = fs::read(path).unwrap();
    for _ in 0..count {
        let at = below(bytes.len());
        bytes[at] = below(256) as u8;
    }
    fs::write(path, bytes).unwrap();
}

/// A process that could not be started, or was killed by the operating system, says nothing about the model's files.
#[test]
fn a_model_whose_process_did_not_start_is_tried_again_after_a_minute() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("models");
    tiny_model::write(&folder, "m", &TinyModel::default());
    let (program, clock) = (dir.path().join("program"), Arc::new(TestClock::default()));
    let settings = Settings { sandbox: Some(program.clone()), ..Settings::new(&folder, 1 << 30) };
    let engine = Engine::start(settings, clock.clone()).unwrap();
    let load = || engine.models().load("m").map(drop);
    let is_refused =
        || matches!(load(), Err(LoadError::Unusable { reason, .. }) if reason.contains("cannot be started"));
    assert!(is_refused());
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_outpost"), &program).unwrap();
    clock.advance(Duration::from_secs(59));
    assert!(is_refused(), "loading a damaged model again and again takes the time of others");
    let problem = || engine.models().list()[0].problem.clone();
    assert!(problem().is_some());
    clock.advance(Duration::from_secs(2));
    load().unwrap();
    assert_eq!(problem(), None);
}
