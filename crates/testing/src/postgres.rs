//! A PostgreSQL server for tests. Its data is in a temporary folder, and it ends with the process that started it.

use std::fs;
use std::io::{self, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub const USER: &str = "outpost";
/// Asked for over TCP only.
pub const PASSWORD: &str = "correct horse";

/// How long a start may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The user that runs the server if the tests run as root, whom PostgreSQL refuses.
const NOBODY: u32 = 65534;

/// Runs a server until the standard input ends, which it does when the tests' process is gone, however it ended.
const KEEPER: &str = r#"
exec 3<&0
"$@" 3<&- </dev/null & server=$!
( read _ <&3; kill -QUIT $server ) & watcher=$!
wait $server; status=$?
kill $watcher 2>/dev/null
[ -z "$REMOVE_AT_END" ] || rm -rf "$REMOVE_AT_END"
exit $status
"#;

/// What to do where the tests find no PostgreSQL.
const NOT_INSTALLED: &str =
    "PostgreSQL is not installed, and some tests need it. Install it: apt-get install postgresql";

/// With this variable, a test that needs PostgreSQL fails where it is not installed. Without it, the test is skipped.
const REQUIRED: &str = "OUTPOST_TEST_REQUIRE_POSTGRES";

/// Returns from a test that needs PostgreSQL where that is not installed. The test then counts as passed, because
/// Rust's test harness cannot skip tests while it runs. See [`is_installed`](postgres::is_installed).
#[macro_export]
macro_rules! needs_postgres {
    () => {
        if !$crate::postgres::is_installed() {
            return;
        }
    };
}

/// True if tests can start a server. If not, says once per process that they are skipped.
///
/// # Panics
///
/// If PostgreSQL is not installed, but the variable `OUTPOST_TEST_REQUIRE_POSTGRES` is set.
pub fn is_installed() -> bool {
    static SAID: Once = Once::new();
    let is_installed = binaries().is_some();
    if !is_installed {
        assert!(std::env::var_os(REQUIRED).is_none(), "{NOT_INSTALLED}");
        // Written as such, because the harness captures what a test prints.
        SAID.call_once(|| drop(writeln!(io::stderr(), "{NOT_INSTALLED}. They are skipped.")));
    }
    is_installed
}

/// A server that belongs to one test.
pub struct PostgresServer {
    folder: PathBuf,
    port: u16,
    keeper: Option<Child>,
    remove_at_end: bool,
    _temporary: Option<TempDir>,
}

/// The server that the tests of a process share.
pub fn shared() -> &'static PostgresServer {
    static SERVER: OnceLock<PostgresServer> = OnceLock::new();
    SERVER.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap().keep();
        PostgresServer::create(folder, None)
    })
}

impl PostgresServer {
    /// Creates and starts a server.
    pub fn start() -> Self {
        let temporary = tempfile::tempdir().unwrap();
        Self::create(temporary.path().to_owned(), Some(temporary))
    }

    fn create(folder: PathBuf, temporary: Option<TempDir>) -> Self {
        give_away(&folder);
        let mut init = unprivileged(&program("initdb"));
        init.arg("-D").arg(folder.join("data")).args(["-U", USER, "--auth-local=trust", "--auth-host=scram-sha-256"]);
        init.args(["--no-sync", "--no-instructions", "--locale=C", "--encoding=UTF8"]).current_dir(&folder);
        let made = init.output().unwrap();
        assert!(made.status.success(), "initdb failed: {}", String::from_utf8_lossy(&made.stderr));
        write_certificates(&folder);
        let remove_at_end = temporary.is_none();
        let mut server = Self { folder, port: 0, keeper: None, remove_at_end, _temporary: temporary };
        server.run();
        server.execute("postgres", &format!("ALTER USER {USER} PASSWORD '{PASSWORD}'"));
        server
    }

    /// Starts the stopped server, with the data that it had, on the same port.
    pub fn run(&mut self) {
        let began = Instant::now();
        while !self.try_run() {
            assert!(began.elapsed() < PATIENCE, "PostgreSQL does not start: {}", self.log());
            // Another process has taken the port.
            self.port = 0;
        }
    }

    /// Returns whether the server accepts connections; otherwise it has ended.
    fn try_run(&mut self) -> bool {
        if self.port == 0 {
            self.port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        }
        let server = unprivileged(&program("postgres"));
        let mut keeper = Command::new("sh");
        keeper.args(["-c", KEEPER, "sh"]).arg(server.get_program()).args(server.get_args());
        keeper.arg("-D").arg(self.folder.join("data")).arg("-k").arg(&self.folder).arg("-p").arg(self.port.to_string());
        for setting in ["listen_addresses=127.0.0.1", "fsync=off", "max_connections=200", "ssl=on"] {
            keeper.args(["-c", setting]);
        }
        for (name, file) in [("ssl_cert_file", "server.pem"), ("ssl_key_file", "server.key")] {
            keeper.arg("-c").arg(format!("{name}={}", self.folder.join(file).display()));
        }
        let log = fs::OpenOptions::new().create(true).append(true).open(self.folder.join("log")).unwrap();
        keeper.current_dir(&self.folder).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
        if self.remove_at_end {
            keeper.env("REMOVE_AT_END", &self.folder);
        }
        let mut keeper = keeper.spawn().unwrap();
        while !self.accepts_connections() {
            if keeper.try_wait().unwrap().is_some() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.keeper = Some(keeper);
        true
    }

    /// Stops the server at once, as a crash would. Its data stay.
    pub fn stop(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            drop(keeper.stdin.take());
            keeper.wait().unwrap();
        }
    }

    fn accepts_connections(&self) -> bool {
        block_on(tokio_postgres::connect(&self.socket_url("postgres"), tokio_postgres::NoTls)).is_ok()
    }

    /// The end of the server's log.
    fn log(&self) -> String {
        let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        log.lines().rev().take(20).collect::<Vec<_>>().join("\n")
    }

    /// A new, empty database.
    pub fn new_database(&self) -> String {
        self.copy_database("template1")
    }

    /// A copy of a database to which nothing is connected.
    pub fn copy_database(&self, template: &str) -> String {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("test_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        self.execute("postgres", &format!("CREATE DATABASE {name} TEMPLATE {template}"));
        name
    }

    /// The URL of a database over the unix socket, which asks for no password.
    pub fn socket_url(&self, database: &str) -> String {
        let folder = self.folder.to_str().unwrap().replace('/', "%2F");
        format!("postgres://{USER}@{folder}:{}/{database}", self.port)
    }

    /// The URL of a database over TCP, which asks for the password. `host` must mean this machine.
    pub fn tcp_url(&self, host: &str, database: &str) -> String {
        format!("postgres://{USER}@{host}:{}/{database}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The certificate of the authority that has signed the server's certificate, which is for `localhost` only.
    pub fn authority(&self) -> PathBuf {
        self.folder.join("authority.pem")
    }

    /// Runs statements over a connection of their own.
    pub fn execute(&self, database: &str, sql: &str) {
        block_on(async {
            let (client, connection) =
                tokio_postgres::connect(&self.socket_url(database), tokio_postgres::NoTls).await.unwrap();
            let mut driver = tokio::task::JoinSet::new();
            driver.spawn(connection);
            client.batch_execute(sql).await.unwrap();
        });
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Runs a future on a thread of its own, because the test may run in a runtime already.
fn block_on<T: Send>(future: impl Future<Output = T> + Send) -> T {
    let run = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future);
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

fn program(name: &str) -> PathBuf {
    binaries().expect(NOT_INSTALLED).join(name)
}

/// The folder with `initdb` and `postgres`: from the path, or of the newest version that Debian has installed.
fn binaries() -> Option<PathBuf> {
    let is_complete = |folder: &PathBuf| folder.join("initdb").exists() && folder.join("postgres").exists();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let version = |folder: &PathBuf| folder.file_name()?.to_str()?.parse::<u32>().ok();
    let versions =
        fs::read_dir("/usr/lib/postgresql").into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let mut versions: Vec<PathBuf> = versions.filter(|folder| version(folder).is_some()).collect();
    versions.sort_by_key(version);
    let installed = versions.iter().rev().map(|folder| folder.join("bin"));
    std::env::split_paths(&path).chain(installed).find(is_complete)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A command that does not run as root.
fn unprivileged(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    let user = NOBODY.to_string();
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]).arg(program);
    command
}

/// Gives a file or folder to the user that runs the server.
fn give_away(path: &Path) {
    if is_root() {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

/// A certificate for `localhost` and the authority that has signed it.
fn write_certificates(folder: &Path) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    fs::write(folder.join("authority.pem"), authority.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = rcgen::Issuer::new(authority, key);
    let server_key = rcgen::KeyPair::generate().unwrap();
    let server = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let pem = server.signed_by(&server_key, &issuer).unwrap().pem();
    for (name, text) in [("server.pem", pem), ("server.key", server_key.serialize_pem())] {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        give_away(&path);
    }
}
