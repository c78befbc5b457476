//! A database and the nodes that share it.

use std::path::Path;
use std::sync::Arc;

use outpost::app::SystemClockRng;
use outpost::storage::{PostgresLocation, PostgresSettings, Store, StoreSettings};
use reqwest::Method;
use serde_json::Value;
use tempfile::TempDir;

use crate::postgres;
use crate::process::{self, ServerProcess};
use crate::server::{MODEL, Server};
use crate::tiny_model::{self, TinyModel};
use crate::wait::until;

/// A database of the server that the tests share.
pub struct Database(String);

impl Database {
    pub fn new() -> Self {
        Self(postgres::shared().new_database())
    }

    fn url(&self) -> String {
        postgres::shared().socket_url(&self.0)
    }

    pub fn location(&self, node: &str) -> PostgresLocation {
        let settings = PostgresSettings::parse(&self.url(), None).unwrap();
        PostgresLocation { settings, node: node.to_owned(), readers: 2 }
    }

    /// A server inside this process. `folder` has its models, and what [`next_to`] adds.
    pub fn serve(&self, node: &str, folder: TempDir) -> Server {
        let location = self.location(node);
        Server::start_in_configured(folder, |config| config.store = Some(location))
    }

    /// A server in a process of its own, in the folder of one that was stopped.
    pub fn spawn(&self, node: &str, folder: &Path) -> ServerProcess {
        ServerProcess::start(folder, &["--store", &self.url(), "--node-name", node])
    }

    /// A node without a server, next to one with this folder.
    pub fn open_store(&self, node: &str, server: &Path) -> (Store, TempDir) {
        let folder = next_to(server, None);
        (open(&folder.path().join("data"), &self.location(node)), folder)
    }

    /// The number that a query returns.
    pub fn number(&self, sql: &str) -> i64 {
        let (url, sql) = (self.url(), sql.to_owned());
        let query = async move {
            let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
            let mut driver = tokio::task::JoinSet::new();
            driver.spawn(connection);
            client.query_one(&sql, &[]).await.unwrap().get(0)
        };
        let run = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(query);
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    /// Waits until no process has claimed anything, apart from maintenance.
    pub fn wait_for_no_leases(&self) {
        let sql = "SELECT count(*) FROM outpost_work_leases WHERE k <> '\\x05'::bytea";
        until(|| "no leases are left", || self.number(sql) == 0);
    }
}

fn open(folder: &Path, location: &PostgresLocation) -> Store {
    let settings = StoreSettings { dir: folder.to_owned(), cache_bytes: 1 << 20, queue: 64 };
    Store::open_postgres(settings, location, Arc::new(SystemClockRng::new())).unwrap()
}

/// Two processes that share a database, without servers.
pub fn two_stores(database: &Database) -> ([Store; 2], TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|node| folder.path().join(node));
    let first = open(&a, &database.location("a"));
    std::fs::create_dir(&b).unwrap();
    std::fs::copy(a.join("pepper"), b.join("pepper")).unwrap();
    ([first, open(&b, &database.location("b"))], folder)
}

/// The folder of the first server of a database.
pub fn first(model: &TinyModel) -> TempDir {
    process::folder(model)
}

/// The folder of a further server: with the pepper and the admin key of the one with the folder `server`.
pub fn next_to(server: &Path, model: Option<&TinyModel>) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("data")).unwrap();
    for file in ["data/pepper", "data/admin.key"] {
        std::fs::copy(server.join(file), folder.path().join(file)).unwrap();
    }
    match model {
        Some(model) => drop(tiny_model::write(&folder.path().join("models"), MODEL, model)),
        None => std::fs::create_dir(folder.path().join("models")).unwrap(),
    }
    folder
}

/// A slow model whose context is so long that no response ends by itself during a test.
pub fn slow_model() -> TinyModel {
    TinyModel { context: 8192, blocks: 4, width: 256, ..TinyModel::default() }
}

/// The end of the body of an upload.
pub const FORM_END: &str = "\r\n--xYzZY--\r\n";
pub const FORM_TYPE: &str = "multipart/form-data; boundary=xYzZY";

/// The body of an upload, without its end.
pub fn form(purpose: &str, content: &str) -> String {
    let part =
        |name: &str, more: &str| format!("--xYzZY\r\nContent-Disposition: form-data; name=\"{name}\"{more}\r\n\r\n");
    format!("{}{purpose}\r\n{}{content}", part("purpose", ""), part("file", "; filename=\"lines.jsonl\""))
}

/// Uploads a file and returns its ID.
pub fn upload(server: &Server, key: &str, purpose: &str, content: &str) -> Value {
    let body = form(purpose, content) + FORM_END;
    let headers = [("content-type", FORM_TYPE)];
    server.raw(Method::POST, "/v1/files", Some(key), &headers, Some(body.into_bytes())).ok()["id"].clone()
}

/// The body of a successful request to a server in a process of its own.
pub fn ask(server: &ServerProcess, method: Method, path: &str, body: Option<&Value>) -> Value {
    let response = server.request(method, path, body);
    let status = response.status();
    let text = response.text().unwrap();
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}
