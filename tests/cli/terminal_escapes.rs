//! Untrusted file names and contents are printed as text. Their terminal escapes are not sent to the terminal.

use std::fs;

use crate::process::{ServerProcess, command, folder, output_text, run};
use crate::tiny_model::TinyModel;

/// Clears the screen, sets the window title, and changes the text direction.
const ESCAPES: &str = "a\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}b";

fn is_plain(text: &str) -> bool {
    let acts = |c: char| c.is_control() && c != '\n' && c != '\t' || c == '\u{202e}';
    !text.contains(acts)
}

/// An archive with only a manifest.
fn archive(manifest: &str) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.set_path("manifest.json").unwrap();
    header.set_mode(0o644);
    header.set_size(manifest.len() as u64);
    header.set_cksum();
    let mut bytes = [header.as_bytes(), manifest.as_bytes()].concat();
    bytes.resize(bytes.len().next_multiple_of(512) + 1024, 0);
    bytes
}

#[test]
fn untrusted_names_and_manifests_cannot_send_terminal_escapes() {
    let folder = folder(&TinyModel::default());
    let path = |name: &str| folder.path().join(name).display().to_string();
    let json = serde_json::to_string(ESCAPES).unwrap();
    let hash = "0".repeat(64);
    let file = |name: &str| format!("{{\"name\": {name}, \"bytes\": 4, \"sha256\": \"{hash}\"}}");
    let manifest = |format: &str, name: &str, files: &str| {
        format!("{{\"format\": {format}, \"version\": 1, \"name\": {name}, \"files\": [{files}]}}")
    };
    let manifests = [
        manifest(&json, "\"m\"", ""),
        manifest("\"outpost-model\"", &json, ""),
        manifest("\"outpost-model\"", "\"m\"", &file(&json)),
        manifest("\"outpost-model\"", "\"m\"", &format!("{},{}", file("\"a.gguf\""), file(&json))),
        format!("{{{json}: 1}}"),
    ];
    for (index, manifest) in manifests.iter().enumerate() {
        fs::write(path("nasty.tar"), archive(manifest)).unwrap();
        let refused = run(folder.path(), &["models", "import", &path("nasty.tar")]);
        assert_eq!(refused.status.code(), Some(1), "{manifest}");
        assert!(is_plain(&output_text(&refused)), "{manifest}: {:?}", output_text(&refused));
        assert!(
            index == 3 || output_text(&refused).contains("[2J"),
            "the escape is shown as text: {}",
            output_text(&refused)
        );
    }
    // Names of an archive, of a file in a folder, and of a requested model.
    fs::write(path(&format!("{ESCAPES}.gguf")), "GGUF").unwrap();
    fs::create_dir(path("inside")).unwrap();
    fs::write(path(&format!("inside/{ESCAPES}.gguf")), "GGUF").unwrap();
    let commands: [&[&str]; 6] = [
        &["models", "import", &path(&format!("{ESCAPES}.gguf"))],
        &["models", "import", &path(&format!("{ESCAPES}.none"))],
        &["models", "import", &path("inside")],
        &["models", "import", "--name", ESCAPES, &path("inside")],
        &["models", "pull", ESCAPES],
        &["models", "export", ESCAPES, &path("out.tar")],
    ];
    for arguments in commands {
        let refused = run(folder.path(), arguments);
        assert_eq!(refused.status.code(), Some(1), "{arguments:?}");
        assert!(
            is_plain(&output_text(&refused)) && output_text(&refused).contains("[2J"),
            "{:?}",
            output_text(&refused)
        );
    }
    assert!(is_plain(&output_text(&run(folder.path(), &["models", "list"]))));
}

#[test]
fn server_logs_contain_no_terminal_escapes() {
    let folder = folder(&TinyModel::default());
    // An unusable model with escapes in its name and header.
    let models = folder.path().join("models");
    fs::create_dir_all(models.join("odd")).unwrap();
    let damaged =
        crate::tiny_model::bytes_with_tensors(&TinyModel::default(), |tensors| tensors[1].0 = ESCAPES.to_owned());
    fs::write(models.join("odd/odd.gguf"), damaged).unwrap();
    let log = folder.path().join("log");
    let mut start = command(folder.path(), &["serve", "--listen", "127.0.0.1:0"]);
    start.env("OUTPOST_LOG", "debug").stderr(fs::File::create(&log).unwrap());
    let serving = ServerProcess::start_command(folder.path(), start);
    let body = serde_json::json!({ "model": "odd", "messages": [{ "role": "user", "content": "hi" }] });
    let response = serving.request(reqwest::Method::POST, "/v1/chat/completions", Some(&body));
    assert_eq!(response.status(), 503);
    let path = "/v1/models/%1B[2J%0Aforged";
    assert_eq!(serving.request(reqwest::Method::GET, path, None).status(), 404);
    let text = fs::read_to_string(log).unwrap();
    assert!(text.contains("/v1/chat/completions") && is_plain(&text), "{text:?}");
}
