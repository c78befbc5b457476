//! systemd's protocols: the socket that it has opened for this service (`sd_listen_fds(3)`), and messages about the state of
//! this service (`sd_notify(3)`). Without systemd, nothing happens.

use std::ffi::OsString;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;

use listenfd::ListenFd;
use rustix::net::sockopt::socket_acceptconn;

/// The listening socket that systemd has handed over. Call it before any thread is started, because it removes the
/// variables that announce the socket. Child processes do not get the socket.
///
/// # Errors
/// If there are several, or if it is not a listening TCP socket, with the remedy.
pub fn inherited_listener() -> Result<Option<TcpListener>, String> {
    let mut sockets = ListenFd::from_env();
    match sockets.len() {
        0 => return Ok(None),
        1 => {}
        count => {
            return Err(format!("systemd hands over {count} sockets, but the server uses one: keep one ListenStream="));
        }
    }
    let unusable = |cause: String| format!("the socket from systemd cannot be used: {cause}");
    let socket = sockets.take_tcp_listener(0).map_err(|cause| unusable(cause.to_string()))?;
    match socket {
        Some(socket) if !socket_acceptconn(&socket).is_ok_and(|listens| listens) => {
            Err(unusable("it does not listen; set Accept=no".to_owned()))
        }
        socket => Ok(socket),
    }
}

/// Tells systemd about the state of this service.
#[derive(Clone, Debug)]
pub struct Notifier {
    /// The path of a socket, or `@` and an abstract name.
    address: Option<OsString>,
}

impl Notifier {
    /// The notifier for the service manager that has started this process, if one has.
    pub fn from_env() -> Self {
        Self { address: std::env::var_os("NOTIFY_SOCKET").filter(|address| !address.is_empty()) }
    }

    /// The service answers requests.
    pub fn ready(&self, status: &str) {
        self.send("READY=1\n", status);
    }

    /// The service has begun to stop.
    pub fn stopping(&self, status: &str) {
        self.send("STOPPING=1\n", status);
    }

    /// Sets the status line of `systemctl status`.
    pub fn status(&self, status: &str) {
        self.send("", status);
    }

    /// Sends a message. A failure only affects what systemd shows and waits for, so it is logged.
    fn send(&self, state: &str, status: &str) {
        let Some(address) = &self.address else { return };
        let message = format!("{state}STATUS={}", status.replace('\n', " "));
        if let Err(cause) = send_datagram(address, message.as_bytes()) {
            tracing::warn!(%cause, ?address, "systemd could not be notified");
        }
    }
}

fn send_datagram(address: &OsString, message: &[u8]) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    #[cfg(target_os = "linux")]
    {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::ffi::OsStrExt;
        if let Some(name) = address.as_bytes().strip_prefix(b"@") {
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
            return socket.send_to_addr(message, &address).map(drop);
        }
    }
    socket.send_to(message, address).map(drop)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    use super::Notifier;

    fn received(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 1024];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    #[test]
    fn messages_reach_sockets_with_a_path_and_with_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("outpost-test-{}", std::process::id());
        let named = SocketAddr::from_abstract_name(&name).unwrap();
        for (socket, address) in [
            (UnixDatagram::bind(&path).unwrap(), path.into_os_string()),
            (UnixDatagram::bind_addr(&named).unwrap(), format!("@{name}").into()),
        ] {
            let notifier = Notifier { address: Some(address) };
            notifier.ready("Listening on\nhttp://127.0.0.1:1");
            assert_eq!(received(&socket), "READY=1\nSTATUS=Listening on http://127.0.0.1:1");
            notifier.status("busy");
            assert_eq!(received(&socket), "STATUS=busy");
            notifier.stopping("bye");
            assert_eq!(received(&socket), "STOPPING=1\nSTATUS=bye");
        }
    }

    #[test]
    fn without_systemd_or_its_socket_nothing_happens() {
        Notifier { address: None }.ready("ready");
        Notifier { address: Some("/nonexistent/notify".into()) }.ready("ready");
    }
}
