use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use outpost::clock_rng::Timestamp;
use outpost::ids::{AuditId, ProjectId};
use outpost::storage::WriteTx;
use outpost::storage::audit::{self, AuditRecord};
use reqwest::Method;
use serde_json::{Value, json};

use crate::clock::ShiftedClock;
use crate::server::{Response, Server};
use crate::store_location::open_store;
use crate::upload::pages;

fn actions(rows: &[Value]) -> Vec<&str> {
    rows.iter().map(|row| row["action"].as_str().unwrap()).collect()
}

fn list(server: &Server, query: &str) -> Vec<Value> {
    server.get(&format!("/v1/audit-events?limit=100&{query}")).ok()["data"].as_array().unwrap().clone()
}

fn export(server: &Server, key: &str, query: &str, accept: &str) -> Response {
    server.raw(Method::GET, &format!("/v1/audit-events?{query}"), Some(key), &[("accept", accept)], None)
}

/// Creates two projects with a key each. The second key renames itself.
fn create_events(server: &Server) -> [(String, String, String); 2] {
    let tenants = [server.tenant("one"), server.tenant("two")];
    let (_, key, secret) = &tenants[1];
    server.call(Method::PATCH, &format!("/v1/api-keys/{key}"), Some(secret), Some(&json!({ "name": "=1+1" }))).ok();
    tenants
}

#[test]
fn filters_narrow_the_log_and_combine() {
    let server = Server::start();
    let [(one, _, _), (two, key, _)] = create_events(&server);
    let all = ["api_key.updated", "api_key.created", "project.created"];
    assert_eq!(actions(&list(&server, &format!("project_id={two}"))), all);
    assert_eq!(actions(&list(&server, &format!("project_id={one}"))), all[1..]);
    assert_eq!(actions(&list(&server, &format!("actor={key}"))), all[..1]);
    assert_eq!(actions(&list(&server, &format!("target={key}"))), all[..2]);
    assert_eq!(actions(&list(&server, "action=api_key.updated")), all[..1]);
    assert_eq!(actions(&list(&server, &format!("project_id={two}&action=api_key"))), all[..2]);
    assert_eq!(list(&server, "action=api_ke"), Vec::<Value>::new(), "a prefix of a resource name does not match");
    assert_eq!(list(&server, &format!("actor={key}&action=project")), Vec::<Value>::new());
    let row = &list(&server, &format!("actor={key}"))[0];
    assert_eq!((&row["actor"], &row["target"], &row["project_id"]), (&json!(key), &json!(key), &json!(two)));
    assert_eq!((&row["object"], &row["detail"]["new"]["name"]), (&json!("audit_event"), &json!("=1+1")));
    let theirs = server.get(&format!("/openai/v1/audit-events?actor={key}")).ok();
    assert!(theirs["object"] == "list" && theirs["data"][0]["at"].is_i64());
}

#[test]
fn a_window_includes_its_start_and_excludes_its_end() {
    let server = Server::start();
    for name in ["a", "b", "c"] {
        server.clock.advance(Duration::from_secs(100));
        server.post("/v1/projects", &json!({ "name": name })).ok();
    }
    let rows = list(&server, "action=project.created");
    let at = |index: usize| rows[index]["at"].as_str().unwrap().to_owned();
    let names = |query: &str| -> Vec<Value> {
        list(&server, &format!("action=project.created&{query}"))
            .iter()
            .map(|row| row["detail"]["name"].clone())
            .collect()
    };
    assert_eq!(names(&format!("start_time={}&end_time={}", at(2), at(0))), ["b", "a"]);
    assert_eq!(names(&format!("start_time={}", at(1))), ["c", "b"]);
    assert_eq!(names(&format!("end_time={}", at(1)))[0], "a");
    assert_eq!(names("start_time=2099-01-01T00:00:00%2B01:00"), Vec::<Value>::new());
}

#[test]
fn invalid_filters_are_named() {
    let server = Server::start();
    let cases = [
        ("actor=key_1", 400, "actor"),
        ("project_id=proj_1", 404, "project_id"),
        ("start_time=yesterday", 400, "start_time"),
        ("start_time=2027-01-01T00:00:00Z&end_time=2027-01-01T00:00:00Z", 400, "start_time"),
        ("end_time=5", 400, "end_time"),
        ("limit=0", 400, "limit"),
        ("cursor=x", 400, "cursor"),
    ];
    for (query, status, param) in cases {
        for accept in ["application/json", "text/csv"] {
            let refused = export(&server, &server.admin, query, accept).error_fields();
            assert_eq!((refused.0, refused.2.as_deref()), (status, Some(param)), "{query} {accept}");
        }
    }
    let paged = export(&server, &server.admin, "limit=5", "application/jsonl").error_fields();
    assert_eq!((paged.0, paged.2.as_deref()), (400, Some("limit")));
}

#[test]
fn a_project_key_reads_only_its_own_log() {
    let server = Server::start();
    let [(one, _, _), (two, _, secret)] = create_events(&server);
    for accept in ["application/json", "text/csv", "application/x-ndjson"] {
        let own = export(&server, &secret, &format!("project_id={two}"), accept);
        assert!(own.status == 200 && own.text.contains("api_key.updated") && !own.text.contains(&one), "{}", own.text);
        assert_eq!(export(&server, &secret, &format!("project_id={one}"), accept).error_fields().1, "project_mismatch");
        assert_eq!(export(&server, &secret, "", accept).error_fields().1, "insufficient_scope");
    }
}

#[test]
fn exports_contain_all_matching_events() {
    let server = Server::start();
    let [_, (two, key, _)] = create_events(&server);
    let csv = export(&server, &server.admin, &format!("project_id={two}"), "text/csv");
    assert_eq!(csv.headers["content-type"], "text/csv; charset=utf-8");
    let mut reader = csv::Reader::from_reader(csv.text.as_bytes());
    assert_eq!(reader.headers().unwrap(), vec!["at", "id", "project_id", "actor", "action", "target", "detail"]);
    let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 3);
    assert_eq!((&rows[0][3], &rows[0][4], &rows[0][5]), (key.as_str(), "api_key.updated", key.as_str()));
    assert!(rows[0][0].ends_with('Z') && rows[0][6].starts_with('{'));

    let lines = export(&server, &server.admin, "", "application/jsonl");
    assert_eq!(lines.headers["content-type"], "application/jsonl; charset=utf-8");
    let lines: Vec<Value> = lines.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines, list(&server, ""), "the export has the same rows as the listing");
    let name = json!({ "name": "a\u{2028}b" });
    server.call(Method::PATCH, &format!("/v1/api-keys/{key}"), Some(&server.admin), Some(&name)).ok();
    let renamed =
        export(&server, &server.admin, &format!("target={key}&action=api_key.updated"), "application/jsonl").text;
    assert!(renamed.contains(r"a\u2028b") && renamed.matches(['\n', '\u{2028}']).count() == 2, "{renamed}");
    let none = export(&server, &server.admin, "action=nothing", "text/csv");
    assert_eq!(none.text, "at,id,project_id,actor,action,target,detail\r\n");
    assert_eq!(export(&server, &server.admin, "action=nothing", "application/jsonl").text, "");
}

#[test]
fn spreadsheet_formulas_are_escaped_in_csv() {
    let server = Server::start();
    let (project, folder) = (server.tenant("t").0, server.stop());
    append_events(folder.path(), &project, 1, "@SUM(A1)");
    let server = Server::start_in(folder);
    let csv = export(&server, &server.admin, "action=@SUM(A1)", "text/csv");
    assert!(csv.text.contains(",'@SUM(A1),"), "{}", csv.text);
}

/// Appends `count` rows to the audit log of a stopped server.
fn append_events(folder: &Path, project: &str, count: usize, action: &str) {
    let clock = Arc::new(ShiftedClock::default());
    let store = open_store(&folder.join("data"), clock.clone());
    let (project, action): (ProjectId, String) = (project.parse().unwrap(), action.to_owned());
    let at = Timestamp::from_millis(1_900_000_000_000);
    let put = move |tx: &WriteTx| {
        (0..count).try_for_each(|_| {
            let record = AuditRecord { at, actor: None, action: action.clone(), target: "t".into(), detail: None };
            audit::append(tx, project, AuditId::generate(&*clock), &record)
        })
    };
    actix_web::rt::System::new().block_on(store.write(put)).unwrap();
    store.shutdown();
}

#[test]
fn a_sparse_search_continues_page_by_page() {
    let server = Server::start();
    let (project, folder) = (server.tenant("long").0, server.stop());
    append_events(folder.path(), &project, 3, "early.row");
    append_events(folder.path(), &project, 25_000, "much.noise");
    append_events(folder.path(), &project, 2, "early.row");
    let server = Server::start_in(folder);
    for scope in [String::new(), format!("&project_id={project}")] {
        let path = format!("/v1/audit-events?action=early{scope}");
        let first = server.get(&path).ok();
        assert_eq!((first["data"].as_array().unwrap().len(), &first["has_more"]), (2, &json!(true)));
        let middle = server.get(&format!("{path}&cursor={}", first["next_cursor"].as_str().unwrap())).ok();
        assert_eq!((middle["data"].as_array().unwrap().len(), &middle["has_more"]), (0, &json!(true)));
        for limit in [1, 2, 5] {
            assert_eq!(pages(&server, &path, limit).len(), 5, "limit {limit}");
        }
    }
    // Rows that are added between two pages do not shift results.
    let first = server.get("/v1/audit-events?action=early&limit=1").ok();
    server.post("/v1/projects", &json!({ "name": "meanwhile" })).ok();
    let second =
        server.get(&format!("/v1/audit-events?action=early&limit=1&cursor={}", first["next_cursor"].as_str().unwrap()));
    assert_eq!(second.ok()["data"][0]["id"], server.get("/v1/audit-events?action=early&limit=2").ok()["data"][1]["id"]);

    let lines = export(&server, &server.admin, "", "application/x-ndjson").text;
    assert!(lines.lines().count() > 25_005);
    assert_eq!(export(&server, &server.admin, "action=early", "text/csv").text.lines().count(), 6);
}
