//! Sockets from systemd, and messages to it.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::process::{MODEL, ServerProcess, command, folder, output_text};
use crate::tiny_model::TinyModel;
use crate::wait::until;

/// `outpost serve` with a socket as descriptor 3, as systemd starts it.
fn activated(folder: &Path, socket: impl Into<OwnedFd>, arguments: &[&str]) -> Command {
    let outpost = command(folder, &[&["serve"], arguments].concat());
    let mut start = Command::new("sh");
    start.args(["-c", "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\" 3<&0 0</dev/null"]);
    start.arg(outpost.get_program()).args(outpost.get_args()).current_dir(folder);
    start.stdin(Stdio::from(socket.into())).stderr(Stdio::null());
    start
}

fn listener(address: &str) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(address).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Whether a process has a descriptor of the socket.
fn holds(process: u32, socket: &TcpListener) -> bool {
    let link = |process: &str, descriptor: &str| fs::read_link(format!("/proc/{process}/fd/{descriptor}")).ok();
    let ours = link("self", &socket.as_raw_fd().to_string()).unwrap();
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let names = descriptors.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.into_iter().any(|name| link(&process.to_string(), &name).as_ref() == Some(&ours))
}

#[test]
fn a_socket_from_systemd_is_served_across_restarts() {
    let folder = folder(&TinyModel::default());
    let (socket, address) = listener("127.0.0.1:0");
    let start = || {
        let started = activated(folder.path(), socket.try_clone().unwrap(), &["--listen", "127.0.0.1:9"]);
        ServerProcess::start_command(folder.path(), started)
    };
    let mut first = start();
    assert_eq!(first.url, format!("http://{address}"));
    let chat = json!({"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(first.request(reqwest::Method::POST, "/v1/chat/completions", Some(&chat)).status(), 200);
    assert!(holds(first.child.id(), &socket), "the test finds the socket");
    let children = first.sandboxes();
    assert!(!children.is_empty() && children.iter().all(|child| !holds(*child, &socket)), "children have no socket");
    first.signal("TERM");
    assert_eq!(first.wait(Duration::from_secs(30)), Some(0));

    // A client that connects while no server runs waits for the next one.
    let url = format!("{}/readyz", first.url);
    let waiting = std::thread::spawn(move || reqwest::blocking::get(url).unwrap().status());
    let _second = start();
    assert_eq!(waiting.join().unwrap(), 200);
}

#[test]
fn restarts_lose_no_request_on_a_new_connection() {
    let folder = folder(&TinyModel::default());
    let (socket, _) = listener("127.0.0.1:0");
    let start =
        || ServerProcess::start_command(folder.path(), activated(folder.path(), socket.try_clone().unwrap(), &[]));
    let mut server = start();
    let (url, running) = (format!("{}/healthz", server.url), AtomicBool::new(true));
    let answers: Vec<String> = std::thread::scope(|scope| {
        let client = || {
            let mut answers = Vec::new();
            while running.load(Ordering::Relaxed) {
                // Its connection is not used again.
                let answer = reqwest::blocking::get(&url);
                answers.push(answer.map_or_else(|error| format!("{error:?}"), |answer| answer.status().to_string()));
            }
            answers
        };
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(client)).collect();
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(300));
            server.signal("TERM");
            assert_eq!(server.wait(Duration::from_secs(30)), Some(0));
            server = start();
        }
        running.store(false, Ordering::Relaxed);
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    let failed: Vec<_> = answers.iter().filter(|answer| *answer != "200 OK").collect();
    assert!(failed.is_empty() && answers.len() > 20, "{} of {}: {failed:?}", failed.len(), answers.len());
}

#[test]
fn a_reload_leaves_the_address_of_the_configuration_file_aside() {
    let folder = folder(&TinyModel::default());
    let log = folder.path().join("log");
    // Without the socket, this needs --insecure-http.
    fs::write(folder.path().join("c.toml"), "server.listen = '0.0.0.0:80'").unwrap();
    let mut start = activated(folder.path(), listener("127.0.0.1:0").0, &["--config", "c.toml"]);
    let serving = ServerProcess::start_command(folder.path(), {
        start.stderr(fs::File::create(&log).unwrap());
        start
    });
    serving.signal("HUP");
    let log = || fs::read_to_string(&log).unwrap();
    until(log, || log().contains("configuration reloaded: no setting has changed"));
}

#[test]
fn plain_http_on_a_socket_that_others_can_reach_is_refused() {
    let folder = folder(&TinyModel::default());
    // A machine without IPv6 has no second one.
    for socket in ["0.0.0.0:0", "[::]:0"].into_iter().filter_map(|address| TcpListener::bind(address).ok()) {
        let address = socket.local_addr().unwrap();
        let mut start = activated(folder.path(), socket.try_clone().unwrap(), &[]);
        let refused = start.stderr(Stdio::piped()).stdout(Stdio::piped()).output().unwrap();
        let text = output_text(&refused);
        assert_eq!(refused.status.code(), Some(1), "{text}");
        let named = [&*address.to_string(), "--tls-cert", "--insecure-http", "ListenStream="];
        assert!(named.iter().all(|part| text.contains(part)), "{text}");
        assert!(!folder.path().join("data").exists(), "no data folder was created");
    }
    let (socket, _) = listener("0.0.0.0:0");
    let start = activated(folder.path(), socket, &["--insecure-http"]);
    assert!(ServerProcess::start_command(folder.path(), start).url.starts_with("http://0.0.0.0:"));
}

#[test]
fn a_socket_that_cannot_be_served_is_named() {
    let folder = folder(&TinyModel::default());
    let (listening, address) = listener("127.0.0.1:0");
    let connected = std::net::TcpStream::connect(address).unwrap();
    let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for (socket, reason) in
        [(OwnedFd::from(connected), "set Accept=no"), (OwnedFd::from(datagrams), "not a valid tcp socket")]
    {
        let mut start = activated(folder.path(), socket, &[]);
        let refused = start.stderr(Stdio::piped()).stdout(Stdio::piped()).output().unwrap();
        assert!(
            refused.status.code() == Some(1) && output_text(&refused).contains(reason),
            "{}",
            output_text(&refused)
        );
    }
    drop(listening);
    assert!(!folder.path().join("data").exists(), "no data folder was created");
}

#[test]
fn systemd_is_told_about_the_start_and_the_stop() {
    let folder = folder(&TinyModel::default());
    let path = folder.path().join("notify");
    let systemd = UnixDatagram::bind(&path).unwrap();
    systemd.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let next = || {
        let mut bytes = [0; 1024];
        let length = systemd.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    };
    let mut start = command(folder.path(), &["serve", "--listen", "127.0.0.1:0"]);
    start.env("NOTIFY_SOCKET", &path).stderr(Stdio::null());
    let mut serving = ServerProcess::start_command(folder.path(), start);
    let ready = next();
    assert_eq!(ready, format!("READY=1\nSTATUS=Listening on {}", serving.url));
    serving.signal("TERM");
    assert!(next().starts_with("STOPPING=1\nSTATUS="));
    assert_eq!(serving.wait(Duration::from_secs(30)), Some(0));
}
