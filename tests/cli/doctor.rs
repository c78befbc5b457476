//! `outpost doctor` and `outpost bench`.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use serde_json::Value;

use crate::fixtures::add_fixture;
use crate::process::{MODEL, ServerProcess, command, folder, run};
use crate::tiny_model::TinyModel;

const EMBEDDER: &str = "bert-mean";

fn report(output: &std::process::Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stdout)))
}

/// `(status, text)` of a check.
fn finding(report: &Value, check: &str) -> (String, String) {
    let findings = report["checks"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["check"] == check).unwrap_or_else(|| panic!("{report}"));
    let text = format!("{}: {}", found["found"].as_str().unwrap(), found["remedy"].as_str().unwrap_or_default());
    (found["status"].as_str().unwrap().to_owned(), text)
}

#[test]
fn the_doctor_changes_nothing_and_finds_what_is_wrong() {
    let folder = folder(&TinyModel::default());
    let before: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let address = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = address.local_addr().unwrap().port().to_string();
    let used = run(folder.path(), &["doctor", "--fast", "--json", "--listen", &port]);
    let found = report(&used);
    assert_eq!(finding(&found, "port").0, "fail", "{found}");
    assert!(finding(&found, "port").1.contains("--listen") && finding(&found, "data").1.contains("does not exist yet"));
    assert_eq!(used.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&used.stderr).contains("one check has failed"));
    drop(address);
    let after: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(before, after);

    fs::write(folder.path().join("models/models.toml"), "pined = true").unwrap();
    let (status, text) =
        finding(&report(&run(folder.path(), &["doctor", "--fast", "--json", "--listen", &port])), "settings");
    assert!(status == "warn" && text.starts_with("models.toml:1: unknown key 'pined'; "), "{text}");

    let free = run(folder.path(), &["doctor", "--fast", "--listen", &port]);
    let text = String::from_utf8(free.stdout).unwrap();
    assert!(free.status.success(), "{text}");
    assert!(text.contains("kernels: ") && text.contains("Llama 3.1 8B") && text.contains("Q4_K_M"), "{text}");
}

#[test]
fn the_doctor_names_the_device_and_what_is_wrong_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let doctor = |device| run(folder.path(), &["doctor", "--fast", "--json", "--listen", "0", "--device", device]);
    assert_eq!(report(&doctor("cpu"))["device"], "cpu");
    let absent = doctor("cuda:99");
    let found = report(&absent);
    assert!(found["device"].is_null() && !absent.status.success(), "{found}");
    let (status, text) = finding(&found, "GPU");
    assert!(status == "fail" && text.contains("--device cuda:99: "), "{text}");
}

#[test]
fn beside_a_running_server_its_own_port_is_fine_and_an_open_secret_is_not() {
    let folder = folder(&TinyModel::default());
    let log = folder.path().join("log");
    let mut start = command(folder.path(), &["serve", "--listen", "127.0.0.1:0"]);
    start.stderr(File::create(&log).unwrap());
    let mut serving = ServerProcess::start_command(folder.path(), start);
    let address = serving.url.strip_prefix("http://").unwrap().to_owned();
    let doctor = || report(&run(folder.path(), &["doctor", "--fast", "--json", "--listen", &address]));
    let found = doctor();
    assert_eq!(finding(&found, "port").0, "ok", "{found}");
    assert_eq!(finding(&found, "data").0, "ok", "{found}");
    let pepper = folder.path().join("data/pepper");
    fs::set_permissions(&pepper, fs::Permissions::from_mode(0o644)).unwrap();
    let (status, text) = finding(&doctor(), "data");
    assert!(status == "fail" && text.contains("chmod go= ") && text.contains("pepper"), "{text}");
    serving.signal("TERM");
    assert_eq!(serving.wait(Duration::from_secs(30)), Some(0));
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains("stopped") && !log.contains("control connection"), "{log}");
}

#[test]
fn a_crash_is_shown_after_the_next_start_and_a_stop_is_none() {
    let folder = folder(&TinyModel::default());
    let last_crash =
        || finding(&report(&run(folder.path(), &["doctor", "--fast", "--json", "--listen", "0"])), "last crash");
    let start = || ServerProcess::start(folder.path(), &[]);
    let stop = |mut serving: ServerProcess, signal: &str| {
        serving.signal(signal);
        serving.wait(Duration::from_secs(30))
    };
    assert_eq!(stop(start(), "TERM"), Some(0));
    assert_eq!(stop(start(), "KILL"), None);
    assert_eq!(last_crash().1, "none: ", "a killed server is noticed by the next one");
    let serving = start();
    let (status, text) = last_crash();
    assert!(status == "warn" && text.contains("it was killed") && text.contains("server's log"), "{text}");
    assert_eq!(stop(serving, "TERM"), Some(0));
    assert_eq!(stop(start(), "TERM"), Some(0));
    assert_eq!(last_crash().1, text, "later runs that stop keep it");
}

#[test]
fn chat_and_embedding_models_are_measured_and_others_refused_by_name() {
    let folder = folder(&TinyModel { context: 1024, ..TinyModel::default() });
    add_fixture("encoders", &folder.path().join("models"), EMBEDDER);
    let bench = |arguments: &[&str]| run(folder.path(), &[&["bench"], arguments].concat());
    for (model, unit) in [(MODEL, "tokens/s"), (EMBEDDER, "texts/s")] {
        let measured = bench(&[model, "--seconds", "1", "--json"]);
        let rows = report(&measured);
        let rows = rows.as_array().unwrap();
        assert!(rows.len() > 1, "{rows:?}");
        assert!(rows[0]["per_second"].as_f64().unwrap() > 0., "{rows:?}");
        for row in rows {
            let is_measured = row["per_second"].as_f64().is_some_and(|speed| speed > 0.);
            assert!(is_measured == (row["runs"].as_u64() > Some(0)) && row["unit"] == unit, "{row}");
        }
    }
    fs::write(folder.path().join("models/models.toml"), format!("[aliases]\ngpt-4o = '{MODEL}'")).unwrap();
    let text = String::from_utf8(bench(&["gpt-4o", "--seconds", "1"]).stdout).unwrap();
    assert!(text.contains("prompt of 512 tokens") && text.contains("8 requests at once"), "{text}");
    let unknown = bench(&["nothing"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("outpost models list"));
}
