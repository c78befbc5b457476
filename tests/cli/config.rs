//! The configuration file: precedence, errors, `outpost config`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use outpost::config::{Applies, KEYS, settings_command};
use serde_json::{Value, json};

use crate::process::{MODEL, ServerProcess, command, folder, output_text, run};
use crate::tiny_model::TinyModel;

/// For each key that is not a flag: the values of the file (in TOML), the variable and the command line.
const VALUES: &[(&str, &str, &str, &str)] = &[
    ("server.listen", "'127.0.0.1:1'", "127.0.0.1:2", "127.0.0.1:3"),
    ("server.data", "'data-1'", "data-2", "data-3"),
    ("server.models", "'models-1'", "models-2", "models-3"),
    ("server.pull_allowed_hosts", "['m1.internal']", "m2.internal", "m3.internal"),
    ("server.public_url", "'https://a1.example'", "https://a2.example", "https://a3.example"),
    ("server.stop_delay_seconds", "1", "2", "3"),
    ("server.drain_seconds", "11", "12", "13"),
    ("tls.cert", "'c1.pem'", "c2.pem", "c3.pem"),
    ("tls.key", "'k1.pem'", "k2.pem", "k3.pem"),
    ("store.url", "'postgres://a@localhost/d1'", "postgres://a@localhost/d2", "postgres://a@localhost/d3"),
    ("store.password_file", "'p1'", "p2", "p3"),
    ("store.connections", "21", "22", "23"),
    ("store.node_name", "'n1'", "n2", "n3"),
    ("compute.threads", "31", "32", "33"),
    ("compute.memory", "'1GiB'", "2GiB", "3GiB"),
    ("compute.device", "['a=cpu']", "b=cpu", "c=cpu"),
    ("compute.kv_type", "'q8'", "f32", "f16"),
    ("compute.prefix_cache_disk", "'1GiB'", "2GiB", "3GiB"),
    ("compute.max_running", "41", "42", "43"),
    ("compute.draft_model", "['a=b']", "c=d", "e=f"),
    ("compute.precision", "['a=bf16']", "b=int8", "c=f32"),
    ("network.allowed_hosts", "['a1.example']", "a2.example", "a3.example"),
    ("network.cors_origins", "['https://a1.example']", "https://a2.example", "https://a3.example"),
    ("network.trusted_proxies", "['10.0.0.1']", "10.0.0.2", "10.0.0.3"),
    ("network.keyless_project", "'p1'", "p2", "p3"),
    ("limits.max_queued", "51", "52", "53"),
    ("limits.usage_retention_days", "61", "62", "63"),
    ("limits.image_url_seconds", "71", "72", "73"),
    ("limits.min_free_disk", "'1MiB'", "2MiB", "3MiB"),
    ("limits.max_audio_size", "'1MiB'", "2MiB", "3MiB"),
    ("limits.max_audio_seconds", "81", "82", "83"),
    ("log.level", "'debug'", "warn", "error"),
    ("log.format", "'json'", "text", "json"),
];

/// A value in TOML or of an argument as `config show --json` has it.
fn shown(key: &str, text: &str) -> Value {
    let is_list = text.starts_with('[') || VALUES.iter().any(|(name, toml, ..)| *name == key && toml.starts_with('['));
    let text = text.trim_matches(['[', ']', '\''].as_slice());
    let value = text.parse::<u64>().map_or_else(|_| json!(text), |number| json!(number));
    if is_list { json!([value]) } else { value }
}

fn show(folder: &Path, extra: &[String], variables: &BTreeMap<String, String>) -> Value {
    let arguments = ["config", "show", "--all", "--json"].map(str::to_owned);
    let arguments: Vec<&str> = arguments.iter().chain(extra).map(String::as_str).collect();
    let mut process = command(folder, &arguments);
    // The certificate settings contradict each other, which is an error after the values are printed.
    let output = process.envs(variables).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", output_text(&output)))
}

#[test]
fn a_flag_precedes_a_variable_which_precedes_the_file_which_precedes_the_default() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = settings_command();
    let (mut variables, mut flags) = (BTreeMap::new(), Vec::new());
    let (mut file, mut defaults) = (String::new(), BTreeMap::new());
    for key in KEYS {
        let argument = arguments.get_arguments().find(|one| one.get_id() == key.argument).unwrap();
        let variable = argument.get_env().unwrap().to_str().unwrap().to_owned();
        let flag = format!("--{}", argument.get_long().unwrap());
        match VALUES.iter().find(|(name, ..)| *name == key.name) {
            Some((_, toml, of_variable, of_flag)) => {
                file += &format!("{} = {toml}\n", key.name);
                variables.insert(variable.clone(), (*of_variable).to_owned());
                flags.push(format!("{flag}={of_flag}"));
            }
            None => {
                assert!(!argument.get_action().takes_values(), "{} needs values in this test", key.name);
                file += &format!("{} = {}\n", key.name, key.opposite.is_none());
                variables.insert(variable.clone(), "false".to_owned());
                flags.push(flag);
            }
        }
        defaults.insert(key.name, variable);
    }
    fs::write(folder.path().join("all.toml"), file).unwrap();
    let with_file = vec!["--config".to_owned(), "all.toml".to_owned()];
    let with_flags = [with_file.clone(), flags].concat();
    let none = BTreeMap::new();
    let built_in = show(folder.path(), &[], &none);
    let from_file = show(folder.path(), &with_file, &none);
    let from_variables = show(folder.path(), &with_file, &variables);
    let from_flags = show(folder.path(), &with_flags, &variables);
    for (index, key) in KEYS.iter().enumerate() {
        let name = key.name;
        let is_opposite = key.opposite.is_some();
        let (of_file, of_variable, of_flag) = match VALUES.iter().find(|(one, ..)| *one == name) {
            Some((_, toml, variable, flag)) => (shown(name, toml), shown(name, variable), shown(name, flag)),
            None => (json!(!is_opposite), json!(is_opposite), json!(!is_opposite)),
        };
        assert_eq!(built_in[name]["origin"], "default", "{name}");
        assert_ne!(built_in[name]["value"], of_file, "{name}: the test uses another value than the default");
        let line = index + 1;
        assert_eq!(from_file[name], json!({ "value": of_file, "origin": "file", "file": "all.toml", "line": line }));
        let variable = json!({ "value": of_variable, "origin": "environment", "variable": defaults[name] });
        assert_eq!(from_variables[name], variable, "{name}");
        assert_eq!(from_flags[name], json!({ "value": of_flag, "origin": "command_line" }), "{name}");
    }
}

/// Runs `outpost config check` on a file with this text.
fn check(text: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("c.toml"), text).unwrap();
    run(folder.path(), &["config", "check", "c.toml"])
}

#[test]
fn check_counts_settings_or_lists_all_errors() {
    for (text, said) in [
        ("", "c.toml is valid: 0 settings\n"),
        ("[server]\nlisten = 80\n", "c.toml is valid: 1 setting\n"),
        ("server.listen = 80\nlog = { level = 'debug' }\n", "c.toml is valid: 2 settings\n"),
    ] {
        let output = check(text);
        assert_eq!((output.status.code(), &*output_text(&output)), (Some(0), said), "{text}");
    }
    let errors = check("[server]\nlisen = 80\nlisten = 'here'\n[compute]\nmemory = '6 apples'\n");
    let said = "outpost: c.toml:2: unknown key 'server.lisen'; did you mean 'server.listen'?\nc.toml:3: server.listen: \
                'here' is not an address with a port; write 127.0.0.1:8080 for this machine only, or 0.0.0.0:8080 for the \
                network\nc.toml:5: compute.memory: '6 apples' is not a size; write for example 6GiB, 800MB or a number of \
                bytes\n";
    assert_eq!((errors.status.code(), &*output_text(&errors)), (Some(1), said));
    for (text, said) in [
        ("tls.cert = 'a.pem'", "c.toml: tls.cert is set but tls.key is not. Give --tls-key"),
        ("tls.key = 'a.pem'", "tls.key is set but tls.cert is not"),
        ("[tls]\ncert = 'a'\nkey = 'b'\nself_signed = true", "tls.self_signed and tls.cert are both set"),
        ("server.listen = '0.0.0.0:80'", "would carry API keys in plain text"),
        ("store.url = 'postgres://a:secret@localhost/d'", "password"),
    ] {
        let output = check(text);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(output_text(&output).contains(said), "{text}: {}", output_text(&output));
        assert!(!output_text(&output).contains("secret"), "{}", output_text(&output));
    }
}

#[test]
fn check_names_variables_that_take_precedence() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("c.toml"), "server.listen = 80\n").unwrap();
    let mut process = command(folder.path(), &["config", "check", "c.toml"]);
    let output = process.env("OUTPOST_LISTEN", "127.0.0.1:81").output().unwrap();
    let said = output_text(&output);
    assert!(said.contains("c.toml:1: server.listen has no effect here: OUTPOST_LISTEN is set"), "{said}");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_file_that_cannot_be_used_stops_every_command_and_creates_nothing() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("folder")).unwrap();
    fs::write(folder.path().join("bad.toml"), "[server]\nlisen = 80\n").unwrap();
    fs::write(folder.path().join("large.toml"), "#".repeat((1 << 20) + 1)).unwrap();
    fs::write(folder.path().join("latin1.toml"), b"# \xe4\n").unwrap();
    let before = fs::read_dir(folder.path()).unwrap().count();
    for (file, said) in [
        ("bad.toml", "did you mean 'server.listen'?"),
        ("absent.toml", "absent.toml cannot be read"),
        ("folder", "not a regular file"),
        ("/dev/zero", "not a regular file"),
        ("large.toml", "larger than 1 MiB"),
        ("latin1.toml", "UTF-8"),
    ] {
        for arguments in [&["serve"][..], &["models", "list"], &["check"], &["config", "show"], &["config", "check"]] {
            let output = run(folder.path(), &[arguments, &["--config", file]].concat());
            assert_eq!(output.status.code(), Some(1), "{file} {arguments:?}");
            assert!(output_text(&output).contains(said), "{file} {arguments:?}: {}", output_text(&output));
        }
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), before);
    let help = run(folder.path(), &["serve", "--help", "--config", "bad.toml"]);
    assert_eq!(help.status.code(), Some(0), "help is shown whatever the file");
}

#[test]
fn the_template_is_valid_with_and_without_its_keys() {
    let folder = tempfile::tempdir().unwrap();
    let template = run(folder.path(), &["config", "init"]);
    assert_eq!(template.status.code(), Some(0));
    let text = String::from_utf8(template.stdout).unwrap();
    assert_eq!(output_text(&check(&text)), "c.toml is valid: 0 settings\n");
    let is_key = |line: &str| line.starts_with('#') && !line.starts_with("# ");
    assert_eq!(text.lines().filter(|line| is_key(line)).count(), KEYS.len());
    // Together, the examples of TLS are contradictory, or need files.
    let of_store = |line: &str| ["#url", "#password_file"].iter().any(|name| line.starts_with(name));
    let set = |line: &str| if is_key(line) && !of_store(line) { line[1..].to_owned() } else { line.to_owned() };
    let all = text.lines().map(set).collect::<Vec<_>>().join("\n");
    assert_eq!(output_text(&check(&all)), format!("c.toml is valid: {} settings\n", KEYS.len() - 2));
    assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
}

#[test]
fn show_prints_valid_toml_with_origins_and_without_passwords() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("c.toml"), "[server]\nlisten = 80\n[network]\nallowed_hosts = ['a', 'b']\n").unwrap();
    let mut process = command(folder.path(), &["config", "show", "--config", "c.toml", "--data", "d"]);
    let output = process.env("OUTPOST_STORE", "postgres://a:secret@localhost/d").output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    let expected = "[server]\nlisten = 80 # from c.toml:2\ndata = \"d\" # from the command line\n\n[store]\nurl = \"(set)\" # \
                    from OUTPOST_STORE\n\n[network]\nallowed_hosts = [\"a\",\"b\"] # from c.toml:4\n";
    assert_eq!(shown, expected);
    let nothing = run(folder.path(), &["config", "show"]);
    assert_eq!(output_text(&nothing), "# Every setting has its default; --all prints them.\n");
    let all = run(folder.path(), &["config", "show", "--all", "--config", "c.toml"]);
    let text = String::from_utf8(all.stdout).unwrap();
    assert!(text.contains("drain_seconds = 30 # default") && text.contains("#threads is not set"), "{text}");
    assert!(output_text(&check(&text)).contains("is valid"), "{}", output_text(&check(&text)));
}

#[test]
fn all_commands_use_the_folders_of_the_file() {
    let folder = folder(&TinyModel::default());
    fs::rename(folder.path().join("models"), folder.path().join("elsewhere")).unwrap();
    let text = "[server]\nlisten = '127.0.0.1:0'\ndata = 'records'\nmodels = 'elsewhere'\n[log]\nformat = 'json'\n";
    fs::write(folder.path().join("c.toml"), text).unwrap();
    let log = folder.path().join("log");
    let mut start = command(folder.path(), &["serve"]);
    start.env("OUTPOST_CONFIG", "c.toml").stderr(fs::File::create(&log).unwrap());
    let mut serving = ServerProcess::start_command(folder.path(), start);
    let listed = run(folder.path(), &["models", "list", "--config", "c.toml"]);
    assert!(output_text(&listed).contains(MODEL), "{}", output_text(&listed));
    let checked = run(folder.path(), &["check", "--config", "c.toml"]);
    assert_eq!(checked.status.code(), Some(0), "{}", output_text(&checked));
    let without = run(folder.path(), &["check", "--config", "none"]);
    assert_eq!(without.status.code(), Some(1), "there is no store in ./data");
    serving.signal("TERM");
    assert_eq!(serving.wait(Duration::from_secs(20)), Some(0));
    assert!(folder.path().join("records/outpost.redb").exists() && !folder.path().join("data").exists());
    let log = fs::read_to_string(log).unwrap();
    assert!(log.lines().all(|line| line.starts_with('{')), "{log}");
}

#[test]
fn the_documentation_has_every_key_with_its_option_and_variable() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let text = fs::read_to_string(path).unwrap();
    let command = settings_command();
    for key in KEYS {
        let argument = command.get_arguments().find(|one| one.get_id() == key.argument).unwrap();
        let option = format!("--{}", argument.get_long().unwrap());
        let names = [key.name, &option, argument.get_env().unwrap().to_str().unwrap()];
        let row = text.lines().find(|line| line.starts_with("| `") && names.iter().all(|name| line.contains(name)));
        let row = row.unwrap_or_else(|| panic!("docs/configuration.md has no row with {names:?}"));
        assert_eq!(row.contains("**R**"), key.applies != Applies::AfterRestart, "{}", key.name);
    }
}
