//! Clients that do not read, and more connections than the open file limit.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use crate::process::{ServerProcess, command, folder};
use crate::tiny_model::TinyModel;
use crate::wait::until;

fn address(serving: &ServerProcess) -> SocketAddr {
    serving.url.trim_start_matches("http://").parse().unwrap()
}

/// A connection with a small receive buffer.
pub fn connect(serving: &ServerProcess) -> TcpStream {
    connect_with_buffer(serving, 4096)
}

fn connect_with_buffer(serving: &ServerProcess, bytes: usize) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(bytes).unwrap();
    socket.connect(&address(serving).into()).unwrap();
    socket.into()
}

/// A connection from another loopback address.
fn connect_from(address: &str, serving: &ServerProcess) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let own: SocketAddr = format!("{address}:0").parse().unwrap();
    socket.bind(&own.into()).unwrap();
    socket.connect(&self::address(serving).into()).unwrap();
    socket.into()
}

/// A server that a shell starts with changed limits.
fn start_limited(folder: &tempfile::TempDir, limits: &str) -> ServerProcess {
    let serve = command(folder.path(), &[]);
    let mut shell = Command::new("sh");
    let line = format!("{limits}; exec {} serve --listen 127.0.0.1:0", serve.get_program().to_str().unwrap());
    shell.args(["-c", &line]).current_dir(folder.path()).stderr(std::process::Stdio::null());
    ServerProcess::start_command(folder.path(), shell)
}

fn open_files(serving: &ServerProcess) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", serving.child.id())).unwrap().count()
}

#[test]
fn connections_of_clients_that_do_not_read_are_closed() {
    let folder = folder(&TinyModel::default());
    let serving = ServerProcess::start(folder.path(), &[]);
    let before = open_files(&serving);
    let mut clients: Vec<TcpStream> = (0..50).map(|_| connect(&serving)).collect();
    let request = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(200);
    for client in &mut clients {
        client.write_all(request.as_bytes()).unwrap();
    }
    let idle = connect(&serving);
    let open = || open_files(&serving);
    until(|| "all are connected", || open() >= before + 50);
    until(|| format!("{} files are open, {before} at first", open()), || open() < before + 10);
    // The response is truncated.
    let mut rest = Vec::new();
    clients[0].set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    match clients[0].read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    drop(idle);
}

/// The connection of a client that reads slowly is not closed.
#[test]
fn a_slow_client_gets_the_whole_response() {
    let folder = folder(&TinyModel::default());
    let serving = ServerProcess::start(folder.path(), &[]);
    let mut client = connect_with_buffer(&serving, 128 << 10);
    let once = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let last = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    client.write_all(format!("{}{last}", once.repeat(49)).as_bytes()).unwrap();
    let (begun, mut all, mut piece) = (Instant::now(), 0, vec![0; 64 << 10]);
    loop {
        let read = client.read(&mut piece).unwrap();
        if read == 0 {
            break;
        }
        all += read;
        // The client reads slowly for longer than a connection may make no progress.
        if begun.elapsed() < Duration::from_secs(25) {
            std::thread::sleep(Duration::from_secs(2));
        }
    }
    let whole: usize = {
        let response = reqwest::blocking::get(format!("{}/openapi.json", serving.url)).unwrap();
        response.bytes().unwrap().len()
    };
    assert!(all > 50 * whole, "{all} bytes of 50 responses of {whole}");
}

#[test]
fn the_open_file_limit_is_raised() {
    let folders = [(); 3].map(|()| folder(&TinyModel::default()));
    let limit = |serving: &ServerProcess| {
        let text = std::fs::read_to_string(format!("/proc/{}/limits", serving.child.id())).unwrap();
        let line = text.lines().find(|line| line.starts_with("Max open files")).unwrap().to_owned();
        line.split_whitespace().nth(3).unwrap().parse::<u64>().unwrap()
    };
    let [low, usual, bounded] = &folders;
    assert_eq!(limit(&start_limited(low, "ulimit -S -n 200")), limit(&start_limited(usual, "true")));
    assert_eq!(limit(&start_limited(bounded, "ulimit -n 256")), 256);
}

/// More clients than the open file limit allows, which send nothing or half a request, or do not read.
#[test]
fn idle_connections_do_not_block_other_clients() {
    let folder = folder(&TinyModel::default());
    let serving = start_limited(&folder, "ulimit -n 256");
    let (url, key) = (serving.url.clone(), serving.key());
    let patience = Duration::from_secs(20);
    let client = || reqwest::blocking::Client::builder().timeout(patience).pool_max_idle_per_host(1).build().unwrap();
    let keyed = |client: &reqwest::blocking::Client| {
        let response = client.get(format!("{url}/v1/models")).bearer_auth(&key).send().unwrap();
        assert_eq!(response.status(), 200);
    };
    let idle_client = client();
    keyed(&idle_client);
    let mut kept_open = connect_from("127.0.0.1", &serving);
    let request = format!("GET /v1/models HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\r\n");
    let request_health = |connection: &mut TcpStream| {
        connection.set_read_timeout(Some(patience)).unwrap();
        connection.write_all(request.as_bytes()).unwrap();
        let mut response = [0; 4096];
        let read = connection.read(&mut response).unwrap();
        assert!(response[..read].starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&response[..read]));
    };
    request_health(&mut kept_open);
    let not_reading = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(20);
    let openings = ["", "GET /healthz HTTP/1.1\r\nhost: loc", not_reading.as_str()];
    let mut connections = Vec::new();
    for addresses in [1, 8] {
        for number in 0..280 {
            let mut connection = connect_from(&format!("127.0.0.{}", 1 + number % addresses), &serving);
            // The server may have closed it in favor of a newer one.
            let _closed = connection.write_all(openings[number % openings.len()].as_bytes());
            connections.push(connection);
        }
        let begun = Instant::now();
        let alive = client().get(format!("{url}/healthz")).send().unwrap();
        assert_eq!(alive.status(), 200);
        keyed(&client());
        keyed(&idle_client);
        request_health(&mut kept_open);
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        assert!(open_files(&serving) < 256, "{}", open_files(&serving));
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let folder = folder(&TinyModel::default());
    let serving = ServerProcess::start(folder.path(), &[]);
    let common = format!("host: localhost\r\nauthorization: Bearer {}\r\n", serving.key());
    let json = format!("{common}content-type: application/json\r\n");
    let (connection, two) = ("{\"name\": \"one\"}", "{\"name\": \"two\"}");
    let mut requests =
        format!("POST /v1/projects HTTP/1.1\r\n{json}content-length: {}\r\n\r\n{connection}", connection.len());
    requests += &format!("GET /v1/models HTTP/1.1\r\n{common}\r\n");
    requests += &format!("POST /v1/projects HTTP/1.1\r\n{json}transfer-encoding: chunked\r\n\r\n");
    requests += &format!("{:x}\r\n{two}\r\n0\r\n\r\n", two.len());
    // This request is refused before its body is read.
    requests +=
        "POST /v1/projects HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n";
    requests += "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let mut client = connect_with_buffer(&serving, 128 << 10);
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client.write_all(requests.as_bytes()).unwrap();
    let mut all = String::new();
    client.read_to_string(&mut all).unwrap();
    let statuses: Vec<&str> = all.split("HTTP/1.1 ").skip(1).map(|response| &response[..3]).collect();
    assert_eq!(statuses, ["200", "200", "200", "401", "200"], "{all}");
    assert!(
        all.contains("\"name\":\"one\"") && all.contains("\"name\":\"two\"") && all.ends_with("{\"status\":\"ok\"}")
    );
}
