use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use crate::process::{ServerProcess, folder, mode, output_text, run};
use crate::tiny_model::TinyModel;

#[test]
fn the_audit_log_is_exported_with_and_without_a_server() {
    let folder = folder(&TinyModel::default());
    let mut serving = ServerProcess::start(folder.path(), &[]);
    let body = json!({ "name": "audited" });
    let project: Value = serving.request(reqwest::Method::POST, "/v1/projects", Some(&body)).json().unwrap();
    let project = project["id"].as_str().unwrap();
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();

    let output = run(folder.path(), &["audit", "export", "online.csv"]);
    assert!(output.status.success() && output_text(&output).contains("online.csv"), "{}", output_text(&output));
    assert_eq!(mode(&folder.path().join("online.csv")), 0o600);
    assert!(read("online.csv").starts_with("at,id,project_id,actor,action,target,detail\r\n"));
    let narrow = [
        "audit",
        "export",
        "--project",
        project,
        "--format",
        "jsonl",
        "--start",
        "2020-01-01T00:00:00Z",
        "online.jsonl",
    ];
    assert!(run(folder.path(), &narrow).status.success());
    let rows: Vec<Value> = read("online.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((rows.len(), &rows[0]["action"], &rows[0]["target"]), (1, &json!("project.created"), &json!(project)));

    let again = run(folder.path(), &["audit", "export", "online.csv"]);
    assert!(!again.status.success() && output_text(&again).contains("exists"), "{}", output_text(&again));
    let missing = format!("proj_{}", "0".repeat(32));
    let unknown = run(folder.path(), &["audit", "export", "--project", &missing, "x.csv"]);
    assert!(!unknown.status.success() && output_text(&unknown).contains("no project"), "{}", output_text(&unknown));
    let backwards = ["audit", "export", "--start", "2027-01-01T00:00:00Z", "--end", "2026-01-01T00:00:00Z", "x.csv"];
    assert!(!run(folder.path(), &backwards).status.success());
    for wrong in [["--project", "shop"], ["--start", "yesterday"], ["--format", "xml"]] {
        let output = run(folder.path(), &["audit", "export", wrong[0], wrong[1], "x.csv"]);
        assert_eq!(output.status.code(), Some(2), "{}", output_text(&output));
    }
    assert!(!folder.path().join("x.csv").exists() && !folder.path().join("x.csv.partial").exists());

    serving.signal("TERM");
    serving.wait(Duration::from_secs(10));
    let output = run(folder.path(), &["audit", "export", "offline.csv"]);
    assert!(output.status.success(), "{}", output_text(&output));
    assert_eq!(read("offline.csv"), read("online.csv"));
}
