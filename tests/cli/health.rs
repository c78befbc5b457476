//! `outpost health`.

use std::net::TcpListener;

use crate::process::{ServerProcess, folder, output_text, run};
use crate::tiny_model::TinyModel;
use crate::wait::until;

#[test]
fn a_ready_server_is_found_by_its_data_folder() {
    let folder = folder(&TinyModel::default());
    let health = |arguments: &[&str]| {
        let output = run(folder.path(), &[&["health"], arguments].concat());
        (output.status.code(), output_text(&output))
    };
    let (code, text) = health(&[]);
    assert!(code == Some(1) && text.contains("no server uses the data folder ./data"), "{text}");
    for tls in [&[][..], &["--tls-self-signed"]] {
        let mut serving = ServerProcess::start(folder.path(), &[&["--stop-delay-seconds", "600"], tls].concat());
        assert_eq!(health(&[]), (Some(0), "ready\n".to_owned()));
        assert_eq!(health(&["--data", "elsewhere", "--url", &serving.url]), (Some(0), "ready\n".to_owned()));
        serving.signal("TERM");
        until(|| "the server is not ready", || health(&[]).0 == Some(1));
        let (_, text) = health(&[]);
        assert!(text.contains("is not ready: The server is shutting down."), "{text}");
        serving.signal("TERM");
        assert_eq!(serving.wait(std::time::Duration::from_secs(30)), Some(0));
    }
}

#[test]
fn an_address_without_a_server_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", listener.local_addr().unwrap());
    let health = |url: &str| {
        let output = run(folder.path(), &["health", "--url", url]);
        assert_eq!(output.status.code(), Some(1));
        output_text(&output)
    };
    // The connection is accepted by the kernel, and never answered.
    assert!(health(&silent).contains("does not answer"));
    drop(listener);
    assert!(health(&silent).contains("does not answer"));
    for wrong in ["127.0.0.1:8080", "ftp://127.0.0.1", "http://", "http://a@b", "http://127.0.0.1:x", "http://x/y"] {
        let text = health(wrong);
        assert!(text.contains("write for example http://127.0.0.1:8080"), "{wrong}: {text}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is created");
}
