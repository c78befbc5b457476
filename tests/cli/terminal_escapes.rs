//! What a stranger's file is called or says reaches the terminal as text, never as a command to it.

use std::fs;

use crate::process::{Serving, command, folder, run, said};
use crate::tiny_model::TinyModel;

/// Clears a screen, sets a window's title, and changes the direction of writing.
const NASTY: &str = "a\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}b";

fn is_plain(text: &str) -> bool {
    let acts = |c: char| c.is_control() && c != '\n' && c != '\t' || c == '\u{202e}';
    !text.contains(acts)
}

/// An archive with a manifest and no more.
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
fn names_and_manifests_of_strangers_do_not_command_the_terminal() {
    let folder = folder(&TinyModel::default());
    let path = |name: &str| folder.path().join(name).display().to_string();
    let json = serde_json::to_string(NASTY).unwrap();
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
    for (place, manifest) in manifests.iter().enumerate() {
        fs::write(path("nasty.tar"), archive(manifest)).unwrap();
        let refused = run(folder.path(), &["models", "import", &path("nasty.tar")]);
        assert_eq!(refused.status.code(), Some(1), "{manifest}");
        assert!(is_plain(&said(&refused)), "{manifest}: {:?}", said(&refused));
        assert!(place == 3 || said(&refused).contains("[2J"), "it is shown, not hidden: {}", said(&refused));
    }
    // Names on disk: of the file itself, of a file in a folder, and a name that is asked for.
    fs::write(path(&format!("{NASTY}.gguf")), "GGUF").unwrap();
    fs::create_dir(path("inside")).unwrap();
    fs::write(path(&format!("inside/{NASTY}.gguf")), "GGUF").unwrap();
    let commands: [&[&str]; 6] = [
        &["models", "import", &path(&format!("{NASTY}.gguf"))],
        &["models", "import", &path(&format!("{NASTY}.none"))],
        &["models", "import", &path("inside")],
        &["models", "import", "--name", NASTY, &path("inside")],
        &["models", "pull", NASTY],
        &["models", "export", NASTY, &path("out.tar")],
    ];
    for arguments in commands {
        let refused = run(folder.path(), arguments);
        assert_eq!(refused.status.code(), Some(1), "{arguments:?}");
        assert!(is_plain(&said(&refused)) && said(&refused).contains("[2J"), "{:?}", said(&refused));
    }
    assert!(is_plain(&said(&run(folder.path(), &["models", "list"]))));
}

#[test]
fn the_log_of_a_server_is_plain_text_too() {
    let folder = folder(&TinyModel::default());
    // A model that cannot be used, whose name and header are nasty.
    let models = folder.path().join("models");
    fs::create_dir_all(models.join("odd")).unwrap();
    let damaged = crate::tiny_model::changed(&TinyModel::default(), |tensors| tensors[1].0 = NASTY.to_owned());
    fs::write(models.join("odd/odd.gguf"), damaged).unwrap();
    let log = folder.path().join("log");
    let mut start = command(folder.path(), &["serve", "--listen", "127.0.0.1:0"]);
    start.env("OUTPOST_LOG", "debug").stderr(fs::File::create(&log).unwrap());
    let serving = Serving::start_as(folder.path(), start);
    let body = serde_json::json!({ "model": "odd", "messages": [{ "role": "user", "content": "hi" }] });
    let answer = serving.request(reqwest::Method::POST, "/v1/chat/completions", Some(&body));
    assert_eq!(answer.status(), 503);
    let path = "/v1/models/%1B[2J%0Aforged";
    assert_eq!(serving.request(reqwest::Method::GET, path, None).status(), 404);
    let text = fs::read_to_string(log).unwrap();
    assert!(text.contains("/v1/chat/completions") && is_plain(&text), "{text:?}");
}
