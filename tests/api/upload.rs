//! Forms with files, built by hand so that a test determines every byte.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use outpost::control_socket;
use outpost::ids::{FileId, ProjectId};
use outpost::storage::content_chunks::{self, Chunk};
use outpost::storage::limits::{self, LimitsRecord, Quotas};
use outpost::storage::quota_usage::{self, QuotaUsageRecord};
use outpost::storage::{Store, WriteTx};
use reqwest::Method;
use serde_json::Value;
use tempfile::TempDir;

use crate::clock::ShiftedClock;
use crate::server::{Headers, Response, Server};
use crate::store_location::{check_store, open_store};
use crate::wait::until;

pub const CHAT: &str = r#"{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"ho"}]}"#;

/// Name, filename, content.
pub type Part<'a> = (&'a str, Option<&'a str>, &'a [u8]);

pub fn form(boundary: &str, parts: &[Part<'_>]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, filename, content) in parts {
        let filename = filename.map(|name| format!("; filename=\"{name}\"")).unwrap_or_default();
        body.extend_from_slice(
            format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"{filename}\r\n\r\n").as_bytes(),
        );
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    body
}

/// `POST {mount}/files` with a form of these parts.
pub fn send(server: &Server, mount: &str, key: &str, parts: &[Part<'_>], headers: Headers<'_>) -> Response {
    let kind = ("content-type", "multipart/form-data; boundary=xYzZY");
    let headers = [&[kind], headers].concat();
    server.raw(Method::POST, &format!("{mount}/files"), Some(key), &headers, Some(form("xYzZY", parts)))
}

/// Uploads a file of training examples.
pub fn upload(server: &Server, key: &str, content: &[u8]) -> Response {
    send(server, "/v1", key, &[("purpose", None, b"fine-tune"), ("file", Some("train.jsonl"), content)], &[])
}

/// Uploads a file with one example and returns its ID.
pub fn file(server: &Server, key: &str) -> String {
    upload(server, key, CHAT.as_bytes()).ok()["id"].as_str().unwrap().to_owned()
}

/// Sends the head of an upload and the start of its body, and returns the connection.
pub fn begin(server: &Server, key: &str, declared: usize, body: &[u8]) -> TcpStream {
    begin_upload_from(server, "203.0.113.1", key, declared, body)
}

/// The same with a forwarded client address, for servers that trust the test as a proxy.
pub fn begin_upload_from(server: &Server, forwarded: &str, key: &str, declared: usize, body: &[u8]) -> TcpStream {
    let mut connection = TcpStream::connect(server.address).unwrap();
    let head = format!(
        "POST /v1/files HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {key}\r\n\
         x-forwarded-for: {forwarded}\r\ncontent-type: multipart/form-data; boundary=xYzZY\r\ncontent-length: {declared}\r\nconnection: close\r\n\r\n"
    );
    connection.write_all(head.as_bytes()).unwrap();
    connection.write_all(body).unwrap();
    connection
}

pub fn read_rest(mut connection: TcpStream) -> String {
    let mut text = String::new();
    connection.read_to_string(&mut text).unwrap();
    text
}

fn open(data: &Path) -> Store {
    open_store(data, Arc::new(ShiftedClock::default()))
}

/// Calls a function with the store of a stopped server.
pub fn with_stopped_store<T: 'static>(data: &Path, work: impl AsyncFnOnce(&Store) -> T) -> T {
    let store = open(data);
    let done = actix_web::rt::System::new().block_on(work(&store));
    store.shutdown();
    done
}

/// The number of records by table of a stopped server. Checks that the store is clean.
pub fn records(folder: &Path) -> BTreeMap<String, u64> {
    let report = check_store(&folder.join("data"));
    assert!(report.is_clean(), "{:?}", report.problems);
    report.records
}

/// File IDs of running or aborted uploads: chunks are stored, but the file does not exist.
fn unfinished_uploads(server: &Server) -> Option<u64> {
    match control_socket::send(&server.folder.path().join("data"), &control_socket::Request::Check).unwrap() {
        Some(control_socket::Reply::Checked(report)) => report.records.get("orphaned_chunks").copied(),
        _ => None,
    }
}

/// Waits until `count` uploads have stored a chunk.
pub fn wait_for_chunks(server: &Server, uploads: u64) {
    until(|| "the uploads store their first chunks", || unfinished_uploads(server) == Some(uploads));
}

/// Stops a server after its sweeper has removed all orphaned chunks.
pub fn stop_after_sweep(server: Server) -> TempDir {
    until(|| "chunks of no file are removed", || unfinished_uploads(&server) == Some(0));
    server.stop()
}

/// Writes chunks into a stopped server's store, as a crash during an upload leaves them.
pub fn write_orphaned_chunks(folder: &Path, count: u32) {
    let id = FileId::from_bytes([7; 16]);
    with_stopped_store(&folder.join("data"), async move |store| {
        let put = move |tx: &WriteTx| {
            (0..count).try_for_each(|index| content_chunks::put(tx, id, index, &Chunk(vec![b'x'; 1000])))
        };
        store.write(put).await.unwrap();
    });
}

/// The quota usage of a project of a stopped server.
pub fn quota_usage_of(folder: &Path, project: &str) -> QuotaUsageRecord {
    let project: ProjectId = project.parse().unwrap();
    with_stopped_store(&folder.join("data"), async move |store| {
        store.read(move |tx| quota_usage::of(tx, project)).await.unwrap()
    })
}

/// Sets the quotas of a project of a stopped server.
pub fn set_quotas(folder: &Path, project: &str, quotas: Quotas) {
    let project: ProjectId = project.parse().unwrap();
    let record = LimitsRecord { quotas, ..LimitsRecord::default() };
    with_stopped_store(&folder.join("data"), async move |store| {
        store.write(move |tx| limits::put(tx, project, &record)).await.unwrap();
    });
}

/// Every item of a listing, page by page.
pub fn pages(server: &Server, path: &str, limit: usize) -> Vec<Value> {
    let (mut items, mut cursor) = (Vec::new(), String::new());
    loop {
        let sign = if path.contains('?') { '&' } else { '?' };
        let page = server.get(&format!("{path}{sign}limit={limit}{cursor}")).ok();
        assert!(page["data"].as_array().unwrap().len() <= limit);
        items.extend(page["data"].as_array().unwrap().iter().cloned());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return items,
        }
    }
}
