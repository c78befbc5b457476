//! `outpost sign-in`.

use serde_json::{Value, json};

use crate::process::{ServerProcess, command, folder, output_text, run};
use crate::terminal::TerminalServer;
use crate::tiny_model::TinyModel;

/// The secret for a link: `None` if it is not valid.
fn redeem(link: &str) -> Option<String> {
    let (url, token) = link.split_once("/#sign-in=").unwrap_or_else(|| panic!("{link}"));
    let request = reqwest::blocking::Client::new().post(format!("{url}/sign-in")).json(&json!({ "token": token }));
    let response = request.send().unwrap();
    let status = response.status();
    let body: Value = response.json().unwrap();
    assert!(status == 200 || body["error"]["code"] == "invalid_sign_in_link", "{body}");
    body["secret"].as_str().map(str::to_owned)
}

#[test]
fn the_command_prints_a_link_of_the_running_server() {
    let folder = folder(&TinyModel::default());
    let none = run(folder.path(), &["sign-in"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(output_text(&none).contains("no server uses the data folder ./data"), "{}", output_text(&none));

    let log = folder.path().join("log");
    let mut start = command(folder.path(), &["serve", "--listen", "127.0.0.1:0"]);
    start.env("OUTPOST_LOG", "trace").stderr(std::fs::File::create(&log).unwrap());
    let serving = ServerProcess::start_command(folder.path(), start);
    let output = run(folder.path(), &["sign-in"]);
    assert!(output.status.success(), "{}", output_text(&output));
    let link = String::from_utf8(output.stdout).unwrap();
    assert!(link.starts_with(&format!("{}/#sign-in=ol_", serving.url)) && link.lines().count() == 1, "{link}");
    let secret = redeem(link.trim()).unwrap();
    let client = reqwest::blocking::Client::new();
    let me: Value = client.get(format!("{}/v1/me", serving.url)).bearer_auth(&secret).send().unwrap().json().unwrap();
    assert_eq!(me["name"], "browser sign-in");
    assert_eq!(redeem(link.trim()), None);

    let log = std::fs::read_to_string(log).unwrap();
    let token = link.trim().split_once('=').unwrap().1;
    assert!(log.contains("a browser has signed in with a link"), "the log has what happened");
    assert!(!log.contains(token) && !log.contains(&secret), "the log has no secret");
}

#[test]
fn the_link_of_a_start_on_a_terminal_signs_in() {
    let folder = folder(&TinyModel::default());
    let mut serving = TerminalServer::start(folder.path(), &[]);
    let link = serving.page.split_whitespace().find(|word| word.contains("#sign-in=")).unwrap().to_owned();
    assert!(redeem(&link).is_some_and(|secret| secret.starts_with("opk_")));
    assert_eq!(redeem(&link), None);
    let rest = serving.stop();
    assert!(!rest.contains("opk_") && !rest.contains("ol_"), "{rest}");
}
