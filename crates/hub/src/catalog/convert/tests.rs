//! Conversions of the files of `tests/fixtures/make_checkpoints.py`, and of damaged and hostile variants of them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Cursor, Read, Write};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zip::write::SimpleFileOptions;

use super::{Converter, run};
use crate::catalog::hashing;
use crate::catalog::staging::Staging;

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new("../../tests/fixtures/checkpoints").join(name)).unwrap()
}

/// The sha256 of the weights that a fixture must become.
fn expected(name: &str) -> String {
    let expected: BTreeMap<String, String> = serde_json::from_slice(&fixture("expected.json")).unwrap();
    expected[name].clone()
}

/// Converts files; returns the sha256 of the weights and the other files, or the error.
fn convert(converter: Converter, inputs: &[(&str, &[u8])]) -> Result<(String, BTreeMap<String, String>), String> {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in inputs {
        fs::write(dir.path().join(name), content).unwrap();
    }
    let staging = Staging::open(&dir.path().join("models"), "m").unwrap();
    run(converter, dir.path(), &staging).map_err(|e| e.to_string())?;
    let weights = hashing::file(&staging.files().join("model.safetensors"), &mut |_| {}).unwrap().sha256;
    let others =
        fs::read_dir(staging.files()).unwrap().flatten().filter(|file| file.file_name() != "model.safetensors");
    let text = |file: fs::DirEntry| (file.file_name().into_string().unwrap(), fs::read_to_string(file.path()).unwrap());
    Ok((weights, others.map(text).collect()))
}

/// A vocabulary of the size of GPT-2: all bytes, and pairs of them.
fn ranks() -> String {
    let bytes = (0..=255).map(|byte| vec![byte]);
    let pairs = (0..=255).flat_map(|left| (0..=255).map(move |right| vec![left, right]));
    let tokens = bytes.chain(pairs).take(50_256);
    tokens.enumerate().map(|(rank, token)| format!("{} {rank}\n", STANDARD.encode(token))).collect()
}

fn convert_openai(checkpoint: &[u8]) -> Result<(String, BTreeMap<String, String>), String> {
    convert(Converter::OpenaiWhisper, &[("checkpoint.pt", checkpoint), ("ranks.tiktoken", ranks().as_bytes())])
}

const CONFIG: &str = r#"{"alignment_heads": [[1, 0]], "lang_ids": [LANGUAGES], "suppress_ids": [1, 2],
    "suppress_ids_begin": [220, 50257]}"#;

fn ctranslate2_config() -> String {
    let languages: Vec<String> = (50_259..50_259 + 99).map(|id: u32| id.to_string()).collect();
    CONFIG.replace("LANGUAGES", &languages.join(", "))
}

fn convert_ctranslate2(model: &[u8]) -> Result<(String, BTreeMap<String, String>), String> {
    let config = ctranslate2_config();
    convert(Converter::Ctranslate2Whisper, &[("model.bin", model), ("ctranslate2.json", config.as_bytes())])
}

fn convert_kokoro(graph: &[u8]) -> Result<(String, BTreeMap<String, String>), String> {
    convert(Converter::KokoroOnnx, &[("kokoro.onnx", graph)])
}

fn json(files: &BTreeMap<String, String>, name: &str) -> serde_json::Value {
    serde_json::from_str(&files[name]).unwrap()
}

/// `data` with the bytes `from`, which it has, replaced.
fn replaced(data: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let at = data.windows(from.len()).position(|window| window == from).unwrap();
    [&data[..at], to, &data[at + from.len()..]].concat()
}

#[test]
fn an_openai_checkpoint_becomes_a_hugging_face_folder() {
    let (weights, files) = convert_openai(&fixture("openai.pt")).unwrap();
    assert_eq!(weights, expected("openai.pt"));
    let config = json(&files, "config.json");
    assert_eq!((&config["vocab_size"], &config["decoder_layers"]), (&51_864.into(), &2.into()));
    let generation = json(&files, "generation_config.json");
    assert_eq!(generation["no_timestamps_token_id"], 50_362);
    assert_eq!(generation["begin_suppress_tokens"], serde_json::json!([220, 50_256]));
    assert_eq!(generation["suppress_tokens"].as_array().unwrap().len(), 90);
    assert!(generation.get("alignment_heads").is_none() && generation.get("lang_to_id").is_none());
    let tokenizer = json(&files, "tokenizer.json");
    assert_eq!(tokenizer["model"]["vocab"].as_object().unwrap().len(), 50_257);
    assert_eq!(tokenizer["model"]["merges"][66], "\u{100} B");
    let added = tokenizer["added_tokens"].as_array().unwrap();
    let content = |id: usize| added[id - 50_256]["content"].as_str().unwrap();
    let named = [50_256, 50_257, 50_258, 50_358, 50_362, 50_363, 51_863].map(content);
    let expected = ["endoftext", "startoftranscript", "en", "transcribe", "notimestamps", "0.00", "30.00"];
    assert_eq!(named, expected.map(|name| format!("<|{name}|>")));
}

#[test]
fn a_ctranslate2_model_becomes_a_hugging_face_folder() {
    let (weights, files) = convert_ctranslate2(&fixture("ctranslate2.bin")).unwrap();
    assert_eq!(weights, expected("ctranslate2.bin"));
    let generation = json(&files, "generation_config.json");
    assert_eq!(generation["lang_to_id"]["<|en|>"], 50_259);
    assert_eq!(generation["lang_to_id"]["<|su|>"], 50_357);
    assert_eq!(generation["task_to_id"]["transcribe"], 50_359);
    assert_eq!(generation["alignment_heads"], serde_json::json!([[1, 0]]));
    assert_eq!(json(&files, "preprocessor_config.json")["feature_size"], 3);
}

#[test]
fn initializers_of_kokoro_get_the_names_of_its_checkpoint() {
    let (weights, files) = convert_kokoro(&fixture("kokoro.onnx")).unwrap();
    assert_eq!((weights, files.len()), (expected("kokoro.onnx"), 0));
}

/// A checkpoint whose pickle is this.
fn with_pickle(pickle: &[u8]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    zip.start_file("archive/data.pkl", SimpleFileOptions::default()).unwrap();
    zip.write_all(pickle).unwrap();
    zip.finish().unwrap().into_inner()
}

/// The fixture with another pickle, which `change` makes.
fn with_changed_pickle(change: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let mut old = zip::ZipArchive::new(Cursor::new(fixture("openai.pt"))).unwrap();
    let mut new = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for index in 0..old.len() {
        let mut entry = old.by_index(index).unwrap();
        let (name, mut content) = (entry.name().unwrap().into_owned(), Vec::new());
        entry.read_to_end(&mut content).unwrap();
        new.start_file(&*name, stored).unwrap();
        let content = if name.ends_with("data.pkl") { change(&content) } else { content };
        new.write_all(&content).unwrap();
    }
    new.finish().unwrap().into_inner()
}

#[test]
fn a_pickle_that_would_run_code_is_refused() {
    let table: [(&[u8], &str); 14] = [
        (b"\x80\x02cposix\nsystem\nX\x08\0\0\0touch /x\x85R.", "'posix.system'"),
        (b"\x80\x02cos\nsystem\nq\0X\x04\0\0\0evil\x85R.", "'os.system'"),
        (b"\x80\x02cbuiltins\neval\nX\x01\0\0\x001\x85R.", "'builtins.eval'"),
        (b"\x80\x02ccollections\nOrderedDict\n)\x81.", "0x81"),
        (b"\x80\x02(X\x02\0\0\0osX\x06\0\0\0system\x93.", "0x93"),
        (b"\x80\x02(X\x02\0\0\0lsios\nsystem\n.", "0x69"),
        (b"\x80\x02}X\x01\0\0\0aN}b.", "0x62"),
        (b"\x80\x04}.", "protocol 2"),
        (b"(dp0\n.", "protocol 2"),
        (b"\x80\x02}h\0.", "not stored"),
        (b"\x80\x02u.", "mark"),
        (b"\x80\x02}X\xff\xff\xff\xff.", "truncated"),
        (b"\x80\x02ctorch\nLongStorage\n.", "'torch.LongStorage'"),
        (b"\x80\x02}", "truncated"),
    ];
    for (pickle, why) in table {
        let error = convert_openai(&with_pickle(pickle)).unwrap_err();
        assert!(error.contains("checkpoint.pt") && error.contains(why), "{why}: {error}");
    }
}

#[test]
fn deeply_nested_pickles_are_refused() {
    let tuples = [b"\x80\x02)".as_slice(), &[0x85; 1_000_000], b"."].concat();
    assert!(convert_openai(&with_pickle(&tuples)).unwrap_err().contains("deeply"));
    let opened: Vec<u8> = b"}X\x01\0\0\0a".repeat(100_000);
    let dicts = [b"\x80\x02", opened.as_slice(), b"N", &[b's'; 100_000], b"."].concat();
    assert!(convert_openai(&with_pickle(&dicts)).unwrap_err().contains("deeply"));
    let shared = [b"\x80\x02)q\0".as_slice(), &b"h\0h\0\x86q\0".repeat(60), b"."].concat();
    assert!(convert_openai(&with_pickle(&shared)).is_err(), "doubled 60 times");
}

#[test]
fn checkpoints_that_do_not_fit_are_refused() {
    // Numbers of the pickle: `M\x98\xca` is 51,864, and `K\x02K\x01\x86` are the strides of a matrix of two columns.
    // Nine ones, which are strides of more dimensions than a tensor may have.
    let many = [&b"("[..], &b"K\x01".repeat(9), b"t"].concat();
    let table: [(&[u8], &[u8], &str); 9] = [
        (b"K\x02K\x01\x86", &many, "unknown form"),
        (b"n_vocab", b"n_vocaq", "'n_vocab'"),
        (b"dims", b"dimz", "'dims'"),
        (b"M\x98\xca", b"M\x99\xca", "not English-only"),
        (b"encoder.ln_post.bias", b"encoder.ln_post.best", "which no Whisper has"),
        (b"K\x02K\x01\x86", b"K\x03K\x01\x86", "strides"),
        (b"K\x02K\x01\x86", b"J\xff\xff\xff\xffK\x01\x86", "unknown form"),
        (b"K\x02K\x01\x86", b"J\xff\xff\xff\x7fK\x01\x86", "strides"),
        (b"HalfStorage", b"FloatStorage", "not"),
    ];
    for (from, to, why) in table {
        let error = convert_openai(&with_changed_pickle(|pickle| replaced(pickle, from, to))).unwrap_err();
        assert!(error.contains(why), "{why}: {error}");
    }
    let whole = with_changed_pickle(<[u8]>::to_vec);
    assert_eq!(convert_openai(&whole).unwrap().0, expected("openai.pt"));
    let twice = convert(
        Converter::OpenaiWhisper,
        &[("checkpoint.pt", &whole), ("ranks.tiktoken", ranks().replacen("AA==", "AQ==", 1).as_bytes())],
    );
    assert!(twice.unwrap_err().contains("ranks.tiktoken cannot be converted: it has a token twice"));
}

#[test]
fn damaged_files_never_pass_and_never_panic() {
    type Convert = fn(&[u8]) -> Result<(String, BTreeMap<String, String>), String>;
    let cases: [(&str, Convert); 3] = [
        ("openai.pt", |data| convert(Converter::OpenaiWhisper, &[("checkpoint.pt", data), ("ranks.tiktoken", b"")])),
        ("ctranslate2.bin", convert_ctranslate2),
        ("kokoro.onnx", convert_kokoro),
    ];
    for (name, convert) in cases {
        let whole = fixture(name);
        for eighth in 0..8 {
            let cut = whole.len() * eighth / 8;
            assert!(convert(&whole[..cut]).is_err(), "{name} cut to {cut} bytes");
        }
        // Structures are near the ends; the bytes between are mostly elements.
        for step in 0..300 {
            let mut damaged = whole.clone();
            let at = if step % 2 == 0 { step * 7 } else { whole.len() - 1 - step * 7 };
            damaged[at] ^= 1 << (step % 8);
            damaged[at / 2] = damaged[at / 2].wrapping_add(u8::try_from(step % 251).unwrap());
            let _must_not_panic = convert(&damaged);
        }
    }
}

#[test]
fn ctranslate2_models_that_do_not_fit_are_refused() {
    let whole = fixture("ctranslate2.bin");
    let table: [(&[u8], &[u8], &str); 8] = [
        (b"\x06\0\0\0", b"\x07\0\0\0", "version 7"),
        (b"WhisperSpec", b"Transformer", "not a Whisper"),
        (b"encoder/conv1/bias\0\x01", b"encoder/conv1/bias\0\x09", "9 dimensions"),
        (b"encoder/conv1/bias\0\x01\x02", b"encoder/conv1/bias\0\x01\x03", "which"),
        (b"encoder/conv1/bias\0\x01\x02\0\0\0\x04", b"encoder/conv1/bias\0\x01\x02\0\0\0\x01", "of type 1"),
        (b"encoder/conv2/bias", b"encoder/conv3/bias", "no variable encoder/conv2/bias"),
        (b"encoder/conv2/bias", b"encoder/conv1/bias", "twice"),
        (b"decoder/projection/weight", b"decoder/projektion/weight", "output matrix"),
    ];
    for (from, to, why) in table {
        let error = convert_ctranslate2(&replaced(&whole, from, to)).unwrap_err();
        assert!(error.contains("model.bin") && error.contains(why), "{why}: {error}");
    }
    let longer = [whole.as_slice(), b"x"].concat();
    assert!(convert_ctranslate2(&longer).unwrap_err().contains("after its end"));
    for (from, to) in [("50260", "50261"), ("[1, 0]", "[2, 0]"), ("suppress_ids\"", "x\"")] {
        let config = ctranslate2_config().replacen(from, to, 1);
        let files = [("model.bin", whole.as_slice()), ("ctranslate2.json", config.as_bytes())];
        assert!(convert(Converter::Ctranslate2Whisper, &files).unwrap_err().contains("ctranslate2.json"), "{to}");
    }
}

#[test]
fn onnx_files_that_do_not_fit_are_refused() {
    let whole = fixture("kokoro.onnx");
    let table: [(&[u8], &[u8], &str); 4] = [
        (b"onnx::LSTM_6930", b"onnx::LSTM_6999", "no initializer onnx::LSTM_6930"),
        (b"\x08\x02\x08\x04\x08\x02\x10\x01", b"\x08\x02\x08\x04\x08\x03\x10\x01", "go beyond its data"),
        (b"onnx::LSTM_6930", b"onnx::LSTM_6931", "twice"),
        (b"fixture", b"fixtur\xff", ""),
    ];
    for (from, to, why) in table {
        match convert_kokoro(&replaced(&whole, from, to)) {
            Ok(_) => assert!(why.is_empty(), "{why}"),
            Err(error) => assert!(!why.is_empty() && error.contains(why), "{why}: {error}"),
        }
    }
    let hostile: [(&[u8], &str); 6] = [
        (b"", "no graph"),
        (b"PK\x03\x04", "ONNX"),
        (b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "beyond its message"),
        (b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "64 bits"),
        (b"\x3a\x02\x2a\x7f", "beyond its message"),
        (b"\x3a\x05\x2a\x03\x6a\x01x", "another file"),
    ];
    for (file, why) in hostile {
        let error = convert_kokoro(file).unwrap_err();
        assert!(error.contains("kokoro.onnx") && error.contains(why), "{why}: {error}");
    }
}
