//! SIGHUP, SIGUSR1 and SIGUSR2 do not stop the server.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::process::{ServerProcess, command, folder, output_text};
use crate::script::write_script;
use crate::tiny_model::TinyModel;
use crate::wait::until;

const HARMLESS: [&str; 3] = ["HUP", "USR1", "USR2"];

#[test]
fn signals_that_do_not_stop_the_server_are_ignored() {
    let folder = folder(&TinyModel::default());
    let mut serving = ServerProcess::start(folder.path(), &[]);
    for _ in 0..3 {
        for name in HARMLESS {
            serving.signal(name);
            assert_eq!(serving.request(reqwest::Method::GET, "/v1/models", None).status(), 200, "after SIG{name}");
        }
    }
    serving.signal("TERM");
    assert_eq!(serving.wait(Duration::from_secs(10)), Some(0));
}

#[test]
fn signals_before_the_server_listens_are_harmless() {
    let folder = tempfile::tempdir().unwrap();
    let pip = folder.path().join("pip");
    // A fake pip that simulates a long pull: it reports its start, waits, and fails.
    write_script(&pip, "#!/bin/sh\ntouch begun\nsleep 2\nexit 1\n");
    let mut start = command(folder.path(), &["serve", "--listen", "127.0.0.1:0"]);
    let child = start.env("OUTPOST_PIP", &pip).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until(|| "the pull begins", || folder.path().join("begun").exists());
    for name in HARMLESS {
        let kill = format!("kill -{name} {}", child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "the process exited by itself: {}", output_text(&output));
    assert!(output_text(&output).contains("--no-pull"), "{}", output_text(&output));
}
