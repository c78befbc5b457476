//! Chunks of a running upload stay while other servers start; those of a dead process are removed.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use outpost_testing::needs_postgres;
use serde_json::Value;

use crate::database::Database;
use crate::nodes::{self, FORM_END, FORM_TYPE};
use crate::tiny_model::TinyModel;
use crate::wait::until;

const CHUNKS: &str = "SELECT count(*) FROM outpost_content_chunks";
const MARKS: &str = "SELECT count(*) FROM outpost_orphaned_chunks";

/// More than a chunk.
fn content() -> String {
    "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"ho\"}]}\n"
        .repeat(20_000)
}

/// Sends an upload without its end.
fn begin(address: &str, key: &str) -> TcpStream {
    let body = nodes::form("fine-tune", &content());
    let mut connection = TcpStream::connect(address).unwrap();
    let head = format!(
        "POST /v1/files HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {key}\r\n\
         content-type: {FORM_TYPE}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len() + FORM_END.len()
    );
    connection.write_all(head.as_bytes()).unwrap();
    connection.write_all(body.as_bytes()).unwrap();
    connection
}

#[test]
fn an_upload_goes_on_while_another_server_starts() {
    needs_postgres!();
    let (database, model) = (Database::new(), TinyModel::default());
    let a = database.serve("a", &model);
    let mut upload = begin(&a.address.to_string(), &a.admin);
    until(|| "chunks are stored", || database.number(CHUNKS) > 1);
    let b = database.serve("b", &model);
    // It has removed something of its own meanwhile.
    let removed = nodes::upload(&b, &b.admin, "fine-tune", &content());
    b.delete(&format!("/v1/files/{}", removed.as_str().unwrap())).ok();
    until(|| "only the upload's mark is left", || database.number(MARKS) == 1);
    upload.write_all(FORM_END.as_bytes()).unwrap();
    let mut response = String::new();
    upload.read_to_string(&mut response).unwrap();
    let (_, body) = response.split_once("\r\n\r\n").unwrap();
    let start = body.find('{').unwrap();
    let end = body.rfind('}').unwrap();
    let file: Value = serde_json::from_str(&body[start..=end]).unwrap();
    let stored = b.get(&format!("/v1/files/{}/content", file["id"].as_str().unwrap()));
    assert_eq!((stored.status, stored.text == content()), (200, true));
    database.wait_for_no_leases();
}

#[test]
fn the_upload_of_a_killed_server_is_removed() {
    needs_postgres!();
    let (database, model) = (Database::new(), TinyModel::default());
    let a = database.serve("a", &model);
    let (other, _folder) = database.open("other");
    let folder = a.stop();
    let mut a = database.spawn("a", folder.path());
    let address = a.url.trim_start_matches("http://").to_owned();
    let upload = begin(&address, &a.key());
    until(|| "chunks are stored", || database.number(CHUNKS) > 1);
    a.child.kill().unwrap();
    a.child.wait().unwrap();
    drop(upload);
    assert_eq!(database.number(MARKS), 1);
    // The next process of the node knows that the one before it is gone.
    let a = database.serve_in("a", folder);
    until(|| "the chunks are removed", || database.number(CHUNKS) + database.number(MARKS) == 0);
    database.wait_for_no_leases();
    drop(a);
    other.shutdown();
}
