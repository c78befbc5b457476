//! A pull through the tunnel of an HTTP proxy.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::{io, thread};

use crate::hub_server::HubServer;
use crate::repository::*;

/// A proxy that opens tunnels, and records the heads of the requests. Its threads end with the test's process.
struct Proxy {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, heads) = (listener.local_addr().unwrap(), Arc::new(Mutex::default()));
        let recorded = Arc::clone(&heads);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let heads = Arc::clone(&recorded);
                // A side that leaves is no error of the test.
                thread::spawn(move || drop(tunnel(client, &heads)));
            }
        });
        Self { address, heads }
    }
}

fn tunnel(client: TcpStream, heads: &Mutex<Vec<String>>) -> io::Result<()> {
    let (mut head, mut reader) = (String::new(), BufReader::new(client.try_clone()?));
    while !head.ends_with("\r\n\r\n") {
        reader.read_line(&mut head)?;
    }
    let target = head.split_whitespace().nth(1).unwrap_or_default().to_owned();
    heads.lock().unwrap().push(head);
    let server = TcpStream::connect(target)?;
    let mut answer = client.try_clone()?;
    answer.write_all(b"HTTP/1.1 200 Connected\r\n\r\n")?;
    let mut back = server.try_clone()?;
    thread::spawn(move || drop(io::copy(&mut back, &mut answer)));
    io::copy(&mut reader, &mut &server)?;
    Ok(())
}

#[test]
fn https_goes_through_the_tunnel_of_a_proxy_that_sees_no_token() {
    let certified = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let mut repository = Repository::new();
    repository.hub = HubServer::start_tls(server_config(&certified));
    repository.cdn = HubServer::start_tls(server_config(&certified));
    repository.add("tiny-F32.gguf", &tiny());
    let certificate = repository.folder.path().join("ca.pem");
    std::fs::write(&certificate, certified.cert.pem()).unwrap();
    let proxy = Proxy::start();
    let mut command = repository.command(&["hf:u/tiny-GGUF"]);
    command.env("SSL_CERT_FILE", &certificate).env("HF_TOKEN", "hf_secret");
    command.env("HTTPS_PROXY", format!("http://user:pass@{}", proxy.address)).env_remove("NO_PROXY");
    succeeded(command.env_remove("no_proxy").output().unwrap());
    assert_eq!(repository.installed(), ["tiny-f32"]);
    let heads = proxy.heads.lock().unwrap().clone();
    for server in [&repository.hub, &repository.cdn] {
        let begins = format!("CONNECT {} HTTP/1.1\r\n", server.address);
        assert!(heads.iter().any(|head| head.starts_with(&begins)), "{heads:?}");
    }
    assert!(heads.iter().all(|head| head.contains("Proxy-Authorization: Basic dXNlcjpwYXNz")), "{heads:?}");
    assert!(heads.iter().all(|head| !head.contains("hf_secret")), "{heads:?}");
    assert!(repository.hub.requests().iter().all(|it| it.header("proxy-authorization").is_none()));
}
