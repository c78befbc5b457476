use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustls::StreamOwned;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::process::{MODEL, ServerProcess, command, folder, mode, output_text, run};
use crate::terminal::TerminalServer;
use crate::tiny_model::TinyModel;
use crate::tls::session;
use crate::wait::until;

/// Standard output may be kept, as by the journal.
#[test]
fn without_a_terminal_a_start_prints_one_line_without_a_secret() {
    let folder = folder(&TinyModel::default());
    let mut first = ServerProcess::start(folder.path(), &["--threads", "2"]);
    let key = first.key();
    assert!(key.starts_with("opk_"));
    let line = &first.startup_output;
    assert!(line.contains(" with 1 model on the CPU (2 threads, ") && line.lines().count() == 1, "{line}");
    assert!(!line.contains("opk_") && !line.contains("sign-in"), "{line}");
    assert_eq!(mode(&folder.path().join("data")), 0o700);
    for file in ["admin.key", "outpost.redb", "pepper"] {
        assert_eq!(mode(&folder.path().join("data").join(file)), 0o600, "{file}");
    }
    first.signal("TERM");
    assert_eq!(first.wait(Duration::from_secs(10)), Some(0));

    let second = ServerProcess::start(folder.path(), &["--log-format", "json"]);
    let line: serde_json::Value = serde_json::from_str(&second.startup_output).unwrap();
    assert_eq!((line["url"].as_str(), line["models"].as_u64()), (Some(&*second.url), Some(1)), "{line}");
    assert!(!line.to_string().contains("opk_") && !line.to_string().contains("sign-in"), "{line}");
    assert!(second.started_in < Duration::from_secs(5), "{:?}", second.started_in);
    assert_eq!(second.key(), key);
    let listed = second.request(reqwest::Method::GET, "/v1/models", None);
    assert!(listed.text().unwrap().contains(MODEL));
}

#[test]
fn on_a_terminal_a_start_shows_the_next_commands_and_no_key() {
    let empty = tempfile::tempdir().unwrap();
    let on_terminal = TerminalServer::start(empty.path(), &["--no-pull"]);
    let page = &on_terminal.page;
    assert!(page.contains("outpost models pull smollm2-135m-instruct") && page.contains("0 models on "), "{page}");
    drop(on_terminal);

    let folder = folder(&TinyModel::default());
    let mut on_terminal = TerminalServer::start(folder.path(), &["--data", "my data"]);
    let page = &on_terminal.page;
    let url = page.lines().next().and_then(|line| line.split(' ').find(|word| word.starts_with("http"))).unwrap();
    assert!(page.contains("  Admin key   my data/admin.key\n") && !page.contains("opk_"), "{page}");
    assert!(page.contains("  outpost models list "), "{page}");
    assert!(page.contains(&format!("  outpost launch claude --data 'my data' --url {url} ")), "{page}");
    assert!(page.contains(&format!("  Sign in     {url}/#sign-in=ol_")), "{page}");
    // Without a log file, the log is on the terminal, too.
    assert!(page.lines().count() < 13 && !page.contains("INFO"), "{page}");
    on_terminal.stop();
}

#[test]
fn permissions_of_readable_secret_files_are_tightened_with_a_warning() {
    let folder = folder(&TinyModel::default());
    let path = |name: &str| folder.path().join("data").join(name);
    let mut first = ServerProcess::start(folder.path(), &[]);
    first.signal("TERM");
    assert_eq!(first.wait(Duration::from_secs(30)), Some(0));
    let start = || {
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let mut start = command(folder.path(), &["serve", "--listen", "127.0.0.1:0"]);
        start.stderr(log);
        let _serving = ServerProcess::start_command(folder.path(), start);
        fs::read_to_string(folder.path().join("log")).unwrap()
    };
    for (secret, open, remedy) in
        [("pepper", 0o640, "rotate all API keys"), ("pepper", 0o604, "rotate"), ("admin.key", 0o644, "revoke this one")]
    {
        fs::set_permissions(path(secret), fs::Permissions::from_mode(open)).unwrap();
        let log = start();
        assert_eq!(mode(&path(secret)), 0o600, "{secret}");
        let is_warning = |line: &str| line.contains("other users") && line.contains(secret) && line.contains(remedy);
        assert!(log.lines().any(is_warning), "{secret} {open:o}: {log}");
    }
    assert!(!start().contains("other users"), "no file is readable for other users any more");
}

#[test]
fn a_second_process_on_the_same_data_gets_a_lock_error() {
    let folder = folder(&TinyModel::default());
    let _first = ServerProcess::start(folder.path(), &[]);
    let second = run(folder.path(), &["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(second.status.code(), Some(1));
    assert!(output_text(&second).contains("Another outpost process"), "{}", output_text(&second));
}

/// Of two concurrent first starts, one serves with the only admin key, and the other reports the lock.
#[test]
fn two_concurrent_first_starts_create_one_key() {
    let mut keys = HashSet::new();
    for _ in 0..5 {
        let folder = folder(&TinyModel::default());
        let start = || {
            let mut start = command(folder.path(), &["serve", "--listen", "127.0.0.1:0"]);
            start.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let mut both = [start(), start()];
        let begun = Instant::now();
        let mut loser = None;
        let ended = || {
            loser = both.iter_mut().position(|one| one.try_wait().unwrap().is_some());
            loser.is_some()
        };
        until(|| "one of the two exits", ended);
        let [first, second] = both;
        let (winner, loser) = if loser == Some(0) { (second, first) } else { (first, second) };
        let loser = loser.wait_with_output().unwrap();
        assert_eq!(loser.status.code(), Some(1));
        let text = output_text(&loser);
        assert!(text.contains("Another outpost process") && !text.contains("opk_"), "{text}");

        let mut winner = ServerProcess::wait_for_start(folder.path(), winner, begun);
        let key = winner.key();
        assert!(keys.insert(key.clone()), "another installation has the same key");
        assert_eq!(count_all_keys(&winner), 1);
        winner.signal("TERM");
        assert_eq!(winner.wait(Duration::from_secs(20)), Some(0));
        let again = ServerProcess::start(folder.path(), &[]);
        assert_eq!((again.key(), count_all_keys(&again)), (key, 1));
    }
}

/// The number of API keys in all projects, requested with the key in the file.
fn count_all_keys(serving: &ServerProcess) -> usize {
    let list = |path: &str| {
        let list: serde_json::Value = serving.request(reqwest::Method::GET, path, None).json().unwrap();
        list["data"].as_array().unwrap_or_else(|| panic!("{list}")).clone()
    };
    let keys = |project: &serde_json::Value| {
        let id = project["id"].as_str().unwrap();
        list(&format!("/v1/api-keys?project_id={id}")).len()
    };
    list("/v1/projects").iter().map(keys).sum()
}

/// A refused start creates no key. The first allowed start creates one, for every listen address.
#[test]
fn each_installation_beyond_loopback_has_its_own_tls_key() {
    let mut keys = HashSet::new();
    for allowed in ["--insecure-http", "--tls-self-signed"] {
        let folder = folder(&TinyModel::default());
        let refused = run(folder.path(), &["serve", "--listen", "0.0.0.0:0"]);
        assert!(
            refused.status.code() == Some(1) && !output_text(&refused).contains("opk_"),
            "{}",
            output_text(&refused)
        );
        assert!(!folder.path().join("data/admin.key").exists());
        let mut start = command(folder.path(), &["serve", "--listen", "0.0.0.0:0", allowed]);
        start.stderr(Stdio::null());
        let serving = ServerProcess::start_command(folder.path(), start);
        assert!(keys.insert(serving.key()));
    }
}

#[test]
fn plain_http_beyond_loopback_requires_a_flag() {
    let folder = folder(&TinyModel::default());
    let refused = run(folder.path(), &["serve", "--listen", "0.0.0.0:0"]);
    assert_eq!(refused.status.code(), Some(1));
    let text = output_text(&refused);
    assert!(["--tls-cert", "--tls-self-signed", "--insecure-http"].iter().all(|flag| text.contains(flag)), "{text}");
    assert!(!folder.path().join("data").exists(), "no data folder was created");
    let mut allowed = ServerProcess::start(folder.path(), &["--insecure-http"]);
    allowed.signal("INT");
    assert_eq!(allowed.wait(Duration::from_secs(10)), Some(0));
}

#[test]
fn an_address_in_use_is_reported() {
    let folder = folder(&TinyModel::default());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = run(folder.path(), &["serve", "--listen", &address]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output_text(&output).contains(&format!("cannot listen on {address}")), "{}", output_text(&output));
}

#[test]
fn https_is_served_with_a_certificate_generated_on_the_first_start() {
    let folder = folder(&TinyModel::default());
    let serving = ServerProcess::start(folder.path(), &["--tls-self-signed"]);
    assert!(serving.url.starts_with("https://"));
    assert_eq!(mode(&folder.path().join("data/tls-key.pem")), 0o600);
    let response = get_over_tls(&serving.url, &folder.path().join("data/tls-cert.pem"), "/healthz");
    assert!(response.starts_with("HTTP/1.1 200") && response.ends_with("{\"status\":\"ok\"}"), "{response}");
}

/// Sends a request over TLS, trusting only this certificate.
fn get_over_tls(url: &str, certificate: &Path, path: &str) -> String {
    let session = session([CertificateDer::from_pem_file(certificate).unwrap()]);
    let socket = TcpStream::connect(url.trim_start_matches("https://")).unwrap();
    let mut stream = StreamOwned::new(session, socket);
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    let _closed_without_notice = stream.read_to_string(&mut response);
    response
}

#[test]
fn an_unusable_certificate_is_named() {
    let folder = folder(&TinyModel::default());
    fs::write(folder.path().join("no.pem"), "no certificate").unwrap();
    let output =
        run(folder.path(), &["serve", "--tls-cert", "no.pem", "--tls-key", "no.pem", "--listen", "127.0.0.1:0"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output_text(&output).contains("no.pem"), "{}", output_text(&output));
}

#[test]
fn without_models_and_pip_the_import_command_is_suggested() {
    let folder = tempfile::tempdir().unwrap();
    let refused = || {
        let output = crate::process::command(folder.path(), &["serve", "--listen", "127.0.0.1:0"])
            .env("OUTPOST_PIP", "/nonexistent/pip")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        let text = output_text(&output);
        assert!(text.contains("outpost models import") && text.contains("--no-pull"), "{text}");
        assert!(!folder.path().join("data").exists());
    };
    refused();
    assert!(!folder.path().join("models").exists(), "a start that fails leaves nothing behind");
    // The model in the checkout does not replace the other starter models.
    let along = folder.path().join("models/pictogram");
    std::fs::create_dir_all(&along).unwrap();
    std::fs::write(along.join("weights.safetensors"), "").unwrap();
    refused();
    std::fs::remove_dir_all(&along).unwrap();
    let mut empty = ServerProcess::start(folder.path(), &["--no-pull"]);
    let list: serde_json::Value = empty.request(reqwest::Method::GET, "/v1/models", None).json().unwrap();
    assert_eq!(list["data"], serde_json::json!([]));
    empty.signal("TERM");
    assert_eq!(empty.wait(Duration::from_secs(10)), Some(0));
}

#[test]
fn invalid_arguments_exit_with_2_and_name_the_flag() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, named) in [
        (&["serve", "--memory", "much"][..], "--memory"),
        (&["serve", "--listen", "here"], "--listen"),
        (&["serve", "--threads", "0"], "--threads"),
        (&["serve", "--log-format", "xml"], "--log-format"),
        (&["srve"], "srve"),
    ] {
        let output = run(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output_text(&output).contains(named), "{arguments:?}: {}", output_text(&output));
    }
    for (arguments, named) in [
        (&["serve", "--tls-cert", "a.pem"][..], "--tls-key"),
        (&["serve", "--tls-key", "a.pem"], "--tls-cert"),
        (&["serve", "--tls-cert", "a.pem", "--tls-key", "a.pem", "--tls-self-signed"], "--tls-self-signed"),
    ] {
        let output = run(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(output_text(&output).contains(named), "{arguments:?}: {}", output_text(&output));
    }
    assert_eq!(run(folder.path(), &["--version"]).status.code(), Some(0));
}
