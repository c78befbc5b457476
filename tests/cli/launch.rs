//! `outpost launch`, with scripts in place of the agents.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::process::{MODEL, ServerProcess, command, folder, output_text, run};
use crate::script::write_script;
use crate::tiny_model::{self, TinyModel};

/// Writes a script with the name of an agent. It prints its arguments and its environment.
fn write_agent(folder: &Path, name: &str) {
    let path = folder.join("bin").join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    write_script(&path, "#!/bin/sh\nfor argument; do echo \"argument $argument\"; done\nenv\nexit 3\n");
}

/// Runs `outpost launch` where the agents of [`write_agent`] are found.
fn launch(folder: &Path, arguments: &[&str]) -> Output {
    let path = format!("{}:/usr/bin:/bin", folder.join("bin").display());
    let mut launch = command(folder, &[&["launch"], arguments].concat());
    launch.env_clear().env("PATH", path).env("ANTHROPIC_API_KEY", "sk-other").output().unwrap()
}

#[test]
fn an_agent_gets_the_address_the_key_and_the_context() {
    let folder = folder(&TinyModel { context: 4096, ..TinyModel::default() });
    let path = folder.path();
    ["claude", "codex", "aider", "opencode"].iter().for_each(|name| write_agent(path, name));
    let server = ServerProcess::start(path, &[]);
    let url = server.url.as_str();
    let started = |client: &str| {
        let output = launch(path, &[client, "--url", url, "--", "-p", "say hi"]);
        assert_eq!(output.status.code(), Some(3), "the agent's own code: {}", output_text(&output));
        let text = output_text(&output);
        assert!(text.contains("argument -p\nargument say hi\n"), "{text}");
        assert!(
            text.contains("tiny has a context of 4096 tokens; coding agents work best with 32768 or more"),
            "{text}"
        );
        text
    };
    let key = server.key();
    let claude = started("claude");
    for line in [
        format!("ANTHROPIC_BASE_URL={url}"),
        format!("ANTHROPIC_AUTH_TOKEN={key}"),
        format!("ANTHROPIC_MODEL={MODEL}"),
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS=4096".to_owned(),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS=1024".to_owned(),
        "CLAUDE_STREAM_IDLE_TIMEOUT_MS=3000000".to_owned(),
    ] {
        assert!(claude.lines().any(|found| found == line), "{line}: {claude}");
    }
    assert!(!claude.contains("AUTO_COMPACT_WINDOW"), "the context is too small for it: {claude}");
    assert!(!claude.contains("sk-other"), "the key for another server is not passed on: {claude}");
    let codex = started("codex");
    for line in [
        format!("argument {MODEL}"),
        "argument model_provider=\"outpost\"".to_owned(),
        format!("argument model_providers.outpost.base_url=\"{url}/openai/v1\""),
        "argument model_providers.outpost.wire_api=\"responses\"".to_owned(),
        "argument model_context_window=4096".to_owned(),
        "argument web_search=\"disabled\"".to_owned(),
        format!("OUTPOST_KEY={key}"),
    ] {
        assert!(codex.lines().any(|found| found == line), "{line}: {codex}");
    }
    let aider = started("aider");
    assert!(aider.contains(&format!("argument --model\nargument openai/{MODEL}\n")), "{aider}");
    assert!(aider.contains(&format!("OPENAI_API_BASE={url}/openai/v1\n")), "{aider}");
    let opencode = started("opencode");
    let config = opencode.lines().find_map(|line| line.strip_prefix("OPENCODE_CONFIG_CONTENT=")).unwrap();
    let config: Value = serde_json::from_str(config).unwrap();
    assert_eq!(config["model"], format!("outpost/{MODEL}"));
    assert_eq!(config["provider"]["outpost"]["models"][MODEL]["limit"]["context"], 4096);
    assert!(opencode.contains(&format!("OUTPOST_KEY={key}\n")), "{opencode}");
}

#[test]
fn the_printed_settings_start_the_agent_in_a_shell() {
    let folder = folder(&TinyModel::default());
    let path = folder.path();
    write_agent(path, "claude");
    fs::create_dir(path.join("data")).unwrap();
    fs::write(path.join("data/admin.key"), "opk_secret\n").unwrap();
    fs::write(path.join("models/models.toml"), format!("[aliases]\nopus = '{MODEL}'")).unwrap();
    let printed = launch(path, &["claude", "--model", "opus", "--print", "--", "-p", "it's late"]);
    assert!(printed.status.success(), "{}", output_text(&printed));
    let script = String::from_utf8(printed.stdout).unwrap();
    assert!(!script.contains("opk_secret"), "{script}");
    let search_path = format!("{}:/usr/bin:/bin", path.join("bin").display());
    let shell =
        Command::new("sh").args(["-c", &script]).current_dir(path).env_clear().env("PATH", search_path).output();
    let shell = output_text(&shell.unwrap());
    assert!(shell.contains("argument it's late\n"), "{shell}");
    assert!(shell.contains("ANTHROPIC_AUTH_TOKEN=opk_secret\n"), "{shell}");
    assert!(shell.contains(&format!("ANTHROPIC_MODEL={MODEL}\n")), "{shell}");
    assert!(shell.contains("ANTHROPIC_BASE_URL=http://127.0.0.1:8080\n"), "{shell}");
}

#[test]
fn what_is_missing_is_said() {
    let empty = tempfile::tempdir().unwrap();
    let none = run(empty.path(), &["launch", "claude"]);
    assert!(output_text(&none).contains("has no chat model; install one with: outpost models pull starter"));
    let folder = folder(&TinyModel::default());
    let path = folder.path();
    let fails = |arguments: &[&str], expected: &str| {
        let output = launch(path, arguments);
        assert_eq!(output.status.code(), Some(1), "{}", output_text(&output));
        assert!(output_text(&output).contains(expected), "{expected}: {}", output_text(&output));
    };
    fails(&["claude", "--model", "tinny"], "there is no chat model 'tinny'; did you mean 'tiny'?");
    fails(&["claude", "--url", "http://127.0.0.1:1"], "no server answers at http://127.0.0.1:1");
    tiny_model::write(&path.join("models"), "other", &TinyModel::default());
    fails(&["claude"], "there are several chat models; choose one with --model: other, tiny");
    let server = ServerProcess::start(path, &[]);
    fails(
        &["claude", "--model", "tiny", "--url", &server.url],
        "claude cannot be started: No such file or directory (os error 2). Install it with: npm install",
    );
}
