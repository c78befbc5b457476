//! Test support for nodes that share a database.

use std::path::Path;
use std::sync::Arc;

use outpost::app::SystemClockRng;
use outpost::storage::Store;
use reqwest::Method;
use serde_json::Value;
use tempfile::TempDir;

use crate::database::Database;
use crate::process::ServerProcess;
use crate::server::Server;
use crate::tiny_model::TinyModel;
use crate::wait::until;

impl Database {
    /// A server in a process of its own, in the folder of one that was stopped.
    pub fn spawn(&self, node: &str, folder: &Path) -> ServerProcess {
        ServerProcess::start(folder, &["--store", &self.url(), "--node-name", node])
    }

    /// Two nodes without servers.
    pub fn open_two_stores(&self) -> ([Store; 2], [TempDir; 2]) {
        let [(a, a_folder), (b, b_folder)] = ["a", "b"].map(|node| self.open(node));
        ([a, b], [a_folder, b_folder])
    }

    /// A node without a server.
    pub fn open(&self, node: &str) -> (Store, TempDir) {
        self.open_store(node, Arc::new(SystemClockRng::new()))
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
