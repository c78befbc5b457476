//! Copies and restores that are cut: what they leave is never taken for a store, and running them again starts over.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use outpost_testing::needs_postgres;
use reqwest::Method;
use serde_json::json;
use tempfile::TempDir;

use crate::postgres::shared;
use crate::process::{ServerProcess, command, folder, output_text, run};
use crate::tiny_model::TinyModel;
use crate::wait::until;

/// A folder whose stopped server has a megabyte of conversations in `data`.
fn stopped() -> TempDir {
    let folder = folder(&TinyModel::default());
    let mut server = ServerProcess::start(folder.path(), &[]);
    let project =
        server.request(Method::GET, "/v1/me", None).json::<serde_json::Value>().unwrap()["project_id"].clone();
    for _ in 0..5 {
        let message = json!({ "role": "user", "content": "x".repeat(200_000) });
        let new = json!({ "project_id": project, "messages": [message] });
        assert!(server.request(Method::POST, "/v1/conversations", Some(&new)).status().is_success());
    }
    server.signal("TERM");
    server.wait(Duration::from_secs(20));
    folder
}

/// Runs the program, which the system kills when it writes beyond `bytes` of a file.
fn run_cut(folder: &Path, arguments: &[&str], bytes: u64) -> Output {
    let whole = command(folder, arguments);
    let mut cut = Command::new("sh");
    // The unit of `ulimit` is 512 bytes.
    cut.args(["-c", "ulimit -c 0; ulimit -f \"$0\"; exec \"$@\""]).arg((bytes / 512).to_string());
    cut.arg(whole.get_program()).args(arguments).current_dir(folder).env("OUTPOST_CONFIG", "none");
    cut.output().unwrap()
}

/// Requires that a start refuses the target of a copy or restore with these words.
fn assert_start_is_refused(folder: &Path, place: &[&str], words: &str) {
    assert_refuses(folder, &["serve", "--listen", "127.0.0.1:0", "--no-pull"], place, words);
}

fn assert_refuses(folder: &Path, arguments: &[&str], place: &[&str], words: &str) {
    let output = run(folder, &[arguments, place].concat());
    let text = output_text(&output);
    assert!(!output.status.success() && text.contains(words), "{arguments:?}: {text}");
}

/// The same for the other commands.
fn assert_commands_are_refused(folder: &Path, place: &[&str], words: &str) {
    let commands: [&[&str]; 4] =
        [&["check"], &["backup", "backup.redb"], &["admin-key"], &["audit", "export", "audit.jsonl"]];
    for arguments in commands {
        assert_refuses(folder, arguments, place, words);
    }
}

/// The report of a check, with the number of records in each table.
fn checked(folder: &Path, place: &[&str]) -> String {
    let output = run(folder, &[&["check", "--verbose"], place].concat());
    assert!(output.status.success(), "{}", output_text(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn copy<'a>(from: &'a str, to: &'a str) -> [&'a str; 6] {
    ["store", "copy", "--from", from, "--to", to]
}

/// Cuts the command at several sizes of the file that it writes, and then runs it to its end.
fn cut_and_run_again(folder: &Path, arguments: &[&str], target: &str, whole: u64, words: &str) {
    for bytes in [512, whole / 4, whole / 2] {
        assert!(!run_cut(folder, arguments, bytes).status.success(), "it is not cut: {bytes}");
        assert!(!folder.join(target).join("outpost.redb").exists());
        assert_start_is_refused(folder, &["--data", target], words);
    }
    assert_commands_are_refused(folder, &["--data", target], words);
    let again = run(folder, arguments);
    assert!(again.status.success(), "{}", output_text(&again));
    assert_eq!(checked(folder, &["--data", target]), checked(folder, &[]));
    let mut names: Vec<_> =
        fs::read_dir(folder.join(target)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["lock", "outpost.redb", "pepper"]);
}

#[test]
fn a_folder_with_a_part_of_a_copy_is_refused_until_the_copy_is_run_again() {
    needs_postgres!();
    let folder = stopped();
    let database = shared().socket_url(&shared().new_database());
    assert!(run(folder.path(), &copy("data", &database)).status.success());
    let size = fs::metadata(folder.path().join("data/outpost.redb")).unwrap().len();
    for from in ["data", &database] {
        let target = if from == "data" { "from-folder" } else { "from-database" };
        cut_and_run_again(folder.path(), &copy(from, target), target, size, "A copy into the data folder");
    }
}

#[test]
fn a_folder_with_a_part_of_a_restore_is_refused_until_it_is_restored_again() {
    let folder = stopped();
    assert!(run(folder.path(), &["backup", "saved"]).status.success());
    let size = fs::metadata(folder.path().join("saved")).unwrap().len();
    let restore = ["restore", "saved", "--data", "target"];
    cut_and_run_again(folder.path(), &restore, "target", size, "A restore into the data folder");
}

#[test]
fn the_rest_of_a_copy_that_was_killed_after_its_end_is_removed() {
    let folder = stopped();
    assert!(run(folder.path(), &copy("data", "target")).status.success());
    let rest = ["copying.redb", "restoring.redb"].map(|name| folder.path().join("target").join(name));
    rest.iter().for_each(|path| fs::write(path, "rest").unwrap());
    let _server = ServerProcess::start(folder.path(), &["--data", "target"]);
    assert!(rest.iter().all(|path| !path.exists()));
}

fn begin(folder: &Path, arguments: &[&str]) -> Child {
    command(folder, arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Whether a table of a database exists and has rows.
fn has_rows(url: &str, table: &str) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
        let mut driver = tokio::task::JoinSet::new();
        driver.spawn(connection);
        client.query(&format!("SELECT k FROM {table} LIMIT 1"), &[]).await.is_ok_and(|rows| !rows.is_empty())
    })
}

#[test]
fn a_database_with_a_part_of_a_copy_is_refused_until_the_copy_is_run_again() {
    needs_postgres!();
    let folder = stopped();
    let database = shared().new_database();
    let url = shared().socket_url(&database);
    // The copy does not get beyond the table of keys.
    shared().execute(
        &database,
        "CREATE TABLE outpost_keys (k bytea PRIMARY KEY, v bytea NOT NULL); \
         CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(60); RETURN NEW; END'; \
         CREATE TRIGGER wait BEFORE INSERT ON outpost_keys FOR EACH ROW EXECUTE FUNCTION wait()",
    );
    let running = begin(folder.path(), &copy("data", &url));
    until(|| "conversations are copied", || has_rows(&url, "outpost_conversations"));
    // Also while the copy runs.
    assert_start_is_refused(
        folder.path(),
        &["--data", "node", "--store", &url],
        "A copy into the database was interrupted",
    );
    kill(running);
    fs::rename(folder.path().join("data/outpost.redb"), folder.path().join("before.redb")).unwrap();
    assert_start_is_refused(folder.path(), &["--store", &url], "A copy into the database was interrupted");
    assert_commands_are_refused(folder.path(), &["--store", &url], "A copy into the database was interrupted");
    fs::rename(folder.path().join("before.redb"), folder.path().join("data/outpost.redb")).unwrap();
    let back = run(folder.path(), &copy(&url, "elsewhere"));
    assert!(output_text(&back).contains("A copy into the database was interrupted"), "{}", output_text(&back));

    shared().execute(&database, "DROP FUNCTION wait() CASCADE");
    let again = run(folder.path(), &copy("data", &url));
    assert!(again.status.success(), "{}", output_text(&again));
    let original = checked(folder.path(), &[]);
    fs::remove_file(folder.path().join("data/outpost.redb")).unwrap();
    assert_eq!(checked(folder.path(), &["--store", &url]), original);
    let server = ServerProcess::start(folder.path(), &["--store", &url]);
    assert!(server.request(Method::GET, "/v1/me", None).status().is_success(), "the key of the source");
}
