//! `--device`. Nothing here needs a GPU, and everything also holds on a machine that has one.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::process::{MODEL, ServerProcess, command, folder, output_text, run};
use crate::tiny_model::TinyModel;

/// Starts a server that can chat, and returns its log.
fn log_of(folder: &Path, arguments: &[&str], variable: Option<&str>) -> String {
    let mut start = command(folder, &[&["serve", "--listen", "127.0.0.1:0"], arguments].concat());
    start.env("OUTPOST_LOG", "outpost=debug").envs(variable.map(|value| ("OUTPOST_DEVICE", value)));
    start.stderr(fs::File::create(folder.join("log")).unwrap());
    let server = ServerProcess::start_command(folder, start);
    let chat = json!({"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]});
    let response = server.request(reqwest::Method::POST, "/openai/v1/chat/completions", Some(&chat));
    let body: Value = response.json().unwrap();
    assert!(body["usage"]["completion_tokens"].as_u64() > Some(0), "{body}");
    fs::read_to_string(folder.join("log")).unwrap()
}

#[test]
fn the_log_names_the_device_of_the_models() {
    let folder = folder(&TinyModel::default());
    let log = log_of(folder.path(), &["--device", "cpu", "--threads", "2"], None);
    assert!(log.contains("models run on the CPU (2 threads, "), "{log}");
    assert!(log_of(folder.path(), &[], None).contains("models run on "));
    let log = log_of(folder.path(), &[], Some("cpu,tiny=candle"));
    assert!(log.contains("models run on the CPU") && log.contains("tiny runs on the CPU"), "{log}");
    // The command line takes precedence.
    assert!(log_of(folder.path(), &["--device", "cpu"], Some("cuda:999")).contains("models run on the CPU"));
}

#[cfg(not(any(feature = "cuda", feature = "metal")))]
#[test]
fn a_build_for_the_cpu_says_why_it_uses_no_gpu() {
    let folder = folder(&TinyModel::default());
    let log = log_of(folder.path(), &["--threads", "1"], None);
    assert!(log.contains("this build has no GPU support"), "{log}");
}

#[test]
fn a_device_that_cannot_be_used_is_refused_before_anything_is_created() {
    let folder = tempfile::tempdir().unwrap();
    for device in ["cuda:999", "tiny=cuda:999"] {
        let output = run(folder.path(), &["serve", "--listen", "127.0.0.1:0", "--device", device]);
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(&format!("--device {device}: ")) && !text.contains("panicked"), "{text}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_word_that_is_no_device_is_refused_with_those_that_are() {
    let folder = tempfile::tempdir().unwrap();
    for device in ["gpu", "tiny=gpu", "cuda:first"] {
        let text = output_text(&run(folder.path(), &["serve", "--device", device]));
        assert!(text.contains("is not a device; write auto, cpu, cuda"), "{text}");
    }
    let help = output_text(&run(folder.path(), &["serve", "--help"]));
    assert!(help.contains("--device <[MODEL=]auto|cpu|cuda[:N]|metal>") && !help.contains("candle"), "{help}");
}
