//! SIGHUP: what applies at once, what needs a restart, and files with errors.

use std::fs::{self, File};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use reqwest::blocking::{Client, Response};
use rustls::StreamOwned;
use rustls::pki_types::CertificateDer;
use serde_json::json;
use tempfile::TempDir;

use crate::process::{MODEL, ServerProcess, command, folder};
use crate::tiny_model::TinyModel;
use crate::tls::{request, session};
use crate::wait::until;

/// A server with a configuration file.
struct Configured {
    folder: TempDir,
    serving: ServerProcess,
}

impl Configured {
    fn start(file: &str, variables: &[(&str, &str)]) -> Self {
        let folder = folder(&TinyModel::default());
        let file = format!("server.listen = '127.0.0.1:0'\n{file}");
        fs::write(folder.path().join("c.toml"), file).unwrap();
        let mut start = command(folder.path(), &["serve", "--config", "c.toml"]);
        start.envs(variables.iter().copied()).stderr(File::create(folder.path().join("log")).unwrap());
        let serving = ServerProcess::start_command(folder.path(), start);
        Self { folder, serving }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path().join("log")).unwrap()
    }

    /// Replaces the file, sends SIGHUP, and waits until the log has a line with `said`.
    fn reload(&self, file: &str, said: &str) {
        fs::write(self.path().join("c.toml"), format!("server.listen = '127.0.0.1:0'\n{file}")).unwrap();
        let before = self.log().len();
        self.serving.signal("HUP");
        let is_said = || self.log()[before..].lines().any(|line| line.contains(said));
        until(|| format!("the log says '{said}': {}", &self.log()[before..]), is_said);
    }

    fn get(&self, path: &str, headers: &[(&str, &str)]) -> Response {
        let client = Client::builder().timeout(Duration::from_secs(60)).build().unwrap();
        let request = client.get(format!("{}{path}", self.serving.url)).bearer_auth(self.serving.key());
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)).send().unwrap()
    }

    fn status_for_host(&self) -> u16 {
        self.get("/v1/models", &[("host", "ai.example.org")]).status().as_u16()
    }

    fn allowed_origin(&self) -> Option<String> {
        let response = self.get("/v1/models", &[("origin", "https://app.example.org")]);
        response.headers().get("access-control-allow-origin").map(|origin| origin.to_str().unwrap().to_owned())
    }
}

#[test]
fn sighup_applies_what_can_change_and_names_the_rest() {
    let server = Configured::start("log.level = 'warn'\ncompute.memory = '1GiB'\n", &[]);
    assert_eq!((server.status_for_host(), server.allowed_origin()), (421, None));
    assert!(!server.log().contains("/v1/models"), "requests are not logged: {}", server.log());

    let changed = "log.level = 'debug'\ncompute.memory = '2GiB'\nserver.data = 'elsewhere'\n\
                   limits.max_queued = 7\nlimits.usage_retention_days = 30\n\
                   network.allowed_hosts = ['ai.example.org']\nnetwork.cors_origins = ['https://app.example.org']\n\
                   network.trusted_proxies = ['10.0.0.1']\n";
    let report = "configuration reloaded: network.allowed_hosts nothing → [\"ai.example.org\"], network.cors_origins nothing → \
                  [\"https://app.example.org\"], network.trusted_proxies nothing → [\"10.0.0.1\"], limits.max_queued 256 → \
                  7, limits.usage_retention_days 90 → 30, log.level \"warn\" → \"debug\"; needs a restart: server.data, \
                  compute.memory";
    server.reload(changed, report);
    assert_eq!(server.status_for_host(), 200);
    assert_eq!(server.allowed_origin().as_deref(), Some("https://app.example.org"));
    until(|| format!("requests are logged: {}", server.log()), || server.log().contains("/v1/models"));
    let again = "configuration reloaded: no setting has changed; needs a restart: server.data, compute.memory";
    server.reload(changed, again);

    // The line is logged although the new level would hide it.
    server.reload("log.level = 'error'\ncompute.memory = '1GiB'\n", "log.level \"debug\" → \"error\"");
    assert_eq!((server.status_for_host(), server.allowed_origin()), (421, None));
}

#[test]
fn a_file_with_errors_changes_nothing() {
    let good = "network.allowed_hosts = ['ai.example.org']\n";
    let server = Configured::start(good, &[]);
    for (bad, said) in [
        ("network.allowed_hosts = []\nlisten = 80\n", "c.toml:3: unknown key 'listen'; did you mean 'server.listen'?"),
        ("network.allowed_hosts = [\n", "c.toml:2: this is not TOML: "),
        ("tls.cert = 'a.pem'\n", "Give --tls-key, OUTPOST_TLS_KEY or tls.key, too"),
        ("compute.memory = 'much'\nlog.level = 'loud'\n", "write error, warn, info, debug or trace"),
    ] {
        server.reload(bad, said);
        assert_eq!(server.status_for_host(), 200, "{bad}");
    }
    let log = server.log();
    let refused = "the configuration is not reloaded, and nothing has changed: ";
    assert_eq!(log.lines().filter(|line| line.contains(refused)).count(), 4, "one line for each: {log}");
    // Child processes of the server do not read the file.
    let body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 2 });
    let response = server.serving.request(reqwest::Method::POST, "/v1/chat/completions", Some(&body));
    assert_eq!(response.status(), 200, "{}", response.text().unwrap());
    fs::remove_file(server.path().join("c.toml")).unwrap();
    server.serving.signal("HUP");
    until(|| server.log(), || server.log().contains("the configuration file c.toml cannot be read"));
    server.reload(good, "configuration reloaded: no setting has changed");
}

#[test]
fn variables_and_flags_still_take_precedence_after_a_reload() {
    let server = Configured::start("log.level = 'info'\n", &[("OUTPOST_LOG", "info"), ("OUTPOST_MAX_QUEUED", "5")]);
    let report = "configuration reloaded: log.level \"info\" → \"debug\" (without effect: OUTPOST_LOG is set)";
    server.reload("log.level = 'debug'\nlimits.max_queued = 9\n", report);
}

#[test]
fn certificates_move_to_other_files_and_tls_is_not_switched_off() {
    let folder = tempfile::tempdir().unwrap();
    let pair = |name: &str| {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        fs::write(folder.path().join(format!("{name}.pem")), made.cert.pem()).unwrap();
        fs::write(folder.path().join(format!("{name}-key.pem")), made.signing_key.serialize_pem()).unwrap();
        let tls = |part: &str| folder.path().join(format!("{name}{part}.pem")).display().to_string();
        (made.cert.der().clone(), format!("tls.cert = '{}'\ntls.key = '{}'\n", tls(""), tls("-key")))
    };
    let ((first, file), (second, other_file)) = (pair("first"), pair("second"));
    let server = Configured::start(&file, &[]);
    let accepts = |certificate: &CertificateDer<'static>| {
        let socket = TcpStream::connect(server.serving.url.trim_start_matches("https://")).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        request(&mut StreamOwned::new(session([certificate.clone()]), socket)).is_ok()
    };
    assert!(accepts(&first) && !accepts(&second));
    let bad = file.replace("first-key", "second-key");
    server.reload(&format!("{bad}limits.max_queued = 9\n"), "the old one stays: ");
    assert!(accepts(&first));
    server.reload(&other_file, &format!("→ \"{}\"", folder.path().join("second-key.pem").display()));
    assert!(accepts(&second) && !accepts(&first));
    server.reload("", "needs a restart: tls.cert, tls.key");
    assert!(accepts(&second));
}

#[test]
fn many_signals_are_handled_one_after_the_other() {
    let mut server = Configured::start("", &[]);
    for _ in 0..50 {
        server.serving.signal("HUP");
    }
    server.reload("limits.max_queued = 9\n", "limits.max_queued 256 → 9");
    assert_eq!(server.get("/v1/models", &[]).status(), 200);
    server.serving.signal("TERM");
    assert_eq!(server.serving.wait(Duration::from_secs(20)), Some(0));
}

/// `--log-level` without a file.
#[test]
fn the_level_of_the_log_is_an_argument() {
    let folder = folder(&TinyModel::default());
    let logged = |arguments: &[&str], filter: Option<&str>| {
        let log = folder.path().join("log");
        let mut start = command(folder.path(), &[&["serve", "--listen", "127.0.0.1:0"], arguments].concat());
        start.stdout(Stdio::piped()).stderr(File::create(&log).unwrap());
        if let Some(filter) = filter {
            start.env("OUTPOST_LOG", filter);
        }
        let mut serving = ServerProcess::start_command(folder.path(), start);
        assert_eq!(serving.request(reqwest::Method::GET, "/v1/models", None).status(), 200);
        serving.signal("TERM");
        assert_eq!(serving.wait(Duration::from_secs(20)), Some(0));
        fs::read_to_string(&log).unwrap()
    };
    assert_eq!(logged(&["--log-level", "error"], None), "");
    assert!(logged(&["--log-level", "info"], None).contains("/v1/models"));
    assert!(logged(&["--log-level", "error"], Some("outpost=info")).contains("/v1/models"));
}
