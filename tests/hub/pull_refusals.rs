//! Pulls that end with an error: nothing is installed, and the message says what to do.

use std::process::Command;

use serde_json::json;

use crate::hub_server::{Fault, HubServer};
use crate::repository::*;
use crate::support::{content, sha256};
use crate::tiny_model::{self, TinyModel};

const API: &str = "/api/models/u/tiny-GGUF/revision/main";

/// Pulls `u/tiny-GGUF`, expects the parts in the error, and nothing in the models folder.
fn refused(repository: &Repository, arguments: &[&str], parts: &[&str]) {
    let error = repository.pull_error(&[&["hf:u/tiny-GGUF"], arguments].concat());
    parts.iter().for_each(|part| assert!(error.contains(part), "'{part}' is not in: {error}"));
    assert!(!error.contains("Signature"), "{error}");
    assert!(repository.installed().is_empty());
}

#[test]
fn a_gated_repository_needs_the_token_of_an_account_with_access() {
    let model = tiny();
    let mut repository = Repository::with(&[("tiny-F32.gguf", &model)]);
    repository.fields["gated"] = json!("auto");
    repository.publish();
    let code = vec![("X-Error-Code", GATED.to_owned())];
    repository.hub.guard(&file_path("tiny-F32.gguf"), "Bearer hf_good", (401, code));
    refused(&repository, &[], &["is gated; accept its license at http", "/u/tiny-GGUF, then set HF_TOKEN"]);
    let output = repository.command(&["hf:u/tiny-GGUF"]).env("HF_TOKEN", "hf_bad").output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("the token that is set has no access") && !error.contains("hf_bad"), "{error}");

    // From the file of Hugging Face's own tools.
    let file = repository.folder.path().join(".cache/huggingface/token");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, "hf_good\n").unwrap();
    repository.pull_ok(&["hf:u/tiny-GGUF"]);
    assert!(repository.cdn.requests().iter().all(|it| it.header("authorization").is_none()));
    assert!(!repository.cdn.requests().is_empty());
}

#[test]
fn missing_repositories_and_revisions_are_named() {
    let repository = Repository::new();
    refused(&repository, &[], &["the hub has no repository 'u/tiny-GGUF'", "set HF_TOKEN if it is private"]);
    let status = |code: &str| Some(Fault::Status(404, vec![("X-Error-Code", code.to_owned())]));
    repository.hub.fail_always(API, status("RepoNotFound"));
    refused(&repository, &[], &["the hub has no repository 'u/tiny-GGUF'"]);
    repository.hub.fail_always(API, status("RevisionNotFound"));
    refused(&repository, &[], &["'u/tiny-GGUF' has no revision 'main'"]);
    repository.hub.fail_always(API, Some(Fault::Status(429, vec![("Retry-After", "1000".to_owned())])));
    refused(&repository, &[], &["allows no more requests for now; try again later"]);
}

#[test]
fn repositories_without_a_usable_gguf_file_say_what_they_have() {
    let list = |names: &[&str]| {
        let mut repository = Repository::new();
        names.iter().for_each(|name| {
            repository
                .list(json!({ "rfilename": name, "size": 1000, "lfs": { "sha256": "0".repeat(64), "size": 1000 } }))
        });
        repository.publish();
        repository
    };
    refused(&list(&[]), &[], &["it has no GGUF and no safetensors files"]);
    refused(&list(&["a.bin", "b.pt"]), &[], &["2 pickle files (.bin, .pt), which are never read"]);
    refused(&list(&["model.safetensors"]), &[], &["1 safetensors files, but no GGUF files and no config.json"]);
    let lacking =
        "m-Q4_K_M-00001-of-00002.gguf cannot be served: part m-Q4_K_M-00002-of-00002.gguf is missing from the source";
    refused(&list(&["m-Q4_K_M-00001-of-00002.gguf"]), &[], &[lacking]);
    refused(&list(&["m-Q1_0.gguf"]), &[], &["m-Q1_0.gguf cannot be served: the type Q1_0 is not supported"]);
}

#[test]
fn the_header_decides_before_the_download() {
    // An architecture that is not supported, in a file of which the rest is never asked for.
    let mut model = tiny();
    let place = model.windows(5).position(|bytes| bytes == b"llama").unwrap();
    model[place..place + 5].copy_from_slice(b"xxxxx");
    let mut file = model.clone();
    file.resize(20 << 20, 0);
    let repository = Repository::with(&[("tiny-F32.gguf", &file)]);
    refused(&repository, &[], &["tiny-F32.gguf cannot be served", "xxxxx"]);
    let asked = repository.cdn.requests().iter().filter_map(|it| it.range()).map(|(_, last)| last).max();
    assert!(asked.unwrap() <= 4 << 20, "{asked:?}");
    let repository = Repository::with(&[("tiny-F32.gguf", &content(1000))]);
    refused(&repository, &[], &["not a GGUF file"]);
}

#[test]
fn a_model_that_does_not_fit_is_refused_with_figures() {
    let repository = Repository::with(&[("tiny-F32.gguf", &tiny())]);
    refused(
        &repository,
        &["--memory", "100KB"],
        &["tiny-f32 needs", "of memory", "weights", "the limit for models on the CPU is 100 kB", "; use --force"],
    );
    assert!(repository.pull_ok(&["hf:u/tiny-GGUF", "--memory", "100KB", "--force"]).contains("does not fit"));
    assert_eq!(repository.installed(), ["tiny-f32"]);
}

#[test]
fn a_smaller_quantisation_is_chosen_if_the_preferred_one_does_not_fit() {
    let large = tiny_model::bytes(&TinyModel { quantized: true, width: 256, blocks: 24, ..TinyModel::default() });
    let repository = Repository::with(&[("tiny-Q4_0.gguf", &large), ("tiny-F32.gguf", &tiny())]);
    let sizes: serde_json::Value =
        serde_json::from_str(&repository.pull_ok(&["hf:u/tiny-GGUF:Q4_0", "--list", "--json"])).unwrap();
    let needed = |label: &str| {
        let all = sizes["candidates"].as_array().unwrap();
        all.iter().find(|it| it["quantization"] == label).unwrap()["memory_bytes"].as_u64().unwrap()
    };
    let limit = (needed("Q4_0") - 1).to_string();
    let text = repository.pull_ok(&["hf:u/tiny-GGUF", "--memory", &limit]);
    assert!(text.lines().any(|line| line.starts_with("* F32")), "{text}");
}

#[test]
fn wrong_hashes_are_refused() {
    let model = tiny();
    let mut repository = Repository::new();
    repository.add_linked("tiny-F32.gguf", &model, &"1".repeat(64));
    refused(&repository, &[], &["has the hash", &sha256(&model), &"1".repeat(64), "It was removed"]);
    let repository = Repository::with(&[("tiny-F32.gguf", &model)]);
    refused(
        &repository,
        &["--sha256", &"2".repeat(64)],
        &["the given sha256 of tiny-F32.gguf is 2222", &sha256(&model)],
    );
    repository.pull_ok(&["hf:u/tiny-GGUF", "--sha256", &sha256(&model)]);
    // The list and the file's own headers disagree.
    let mut repository = Repository::with(&[("tiny-F32.gguf", &model)]);
    let headers =
        vec![("X-Linked-Size", model.len().to_string()), ("X-Linked-Etag", format!("\"{}\"", "3".repeat(64)))];
    repository.hub.redirect(&file_path("tiny-F32.gguf"), repository.cdn.url("/blobs/tiny-F32.gguf"), headers);
    refused(&repository, &[], &["it gives several hashes of tiny-F32.gguf"]);
    repository = Repository::new();
    repository.list(json!({ "rfilename": "tiny-F32.gguf", "size": model.len() }));
    repository.hub.add(&file_path("tiny-F32.gguf"), model.clone());
    refused(&repository, &[], &["it gives no hash of tiny-F32.gguf"]);
}

#[test]
fn malicious_lists_are_refused_or_ignored() {
    let mut repository = Repository::new();
    for name in ["../../evil.gguf", "/etc/evil.gguf", "a/\u{1b}[2Jevil.gguf"] {
        repository.list(json!({ "rfilename": name, "lfs": { "sha256": "0".repeat(64), "size": 5 } }));
    }
    repository.list(json!({ "rfilename": "huge.gguf", "lfs": { "sha256": "0".repeat(64), "size": u64::MAX } }));
    refused(&repository, &[], &["it has no GGUF and no safetensors files"]);
    for name in ["A.gguf", "a.gguf"] {
        repository.list(json!({ "rfilename": name, "lfs": { "sha256": "0".repeat(64), "size": 5 } }));
    }
    refused(&repository, &[], &["two files a.gguf, apart from case"]);
    repository.hub.add(API, "[".repeat(100_000));
    refused(&repository, &[], &["makes no sense"]);
    repository.hub.add(API, vec![b' '; (16 << 20) + 1]);
    refused(&repository, &[], &["larger than"]);
    let mut repository = Repository::with(&[("tiny-F32.gguf", &tiny())]);
    repository.fields["cardData"]["license"] = json!("mit\u{1b}]0;owned\u{7}");
    repository.publish();
    let text = repository.pull_ok(&["hf:u/tiny-GGUF"]);
    assert!(!text.contains('\u{1b}') && text.contains("license mit"), "{text}");
}

#[test]
fn a_redirect_to_this_machine_is_refused_unless_it_is_allowed() {
    let repository = Repository::with(&[("tiny-F32.gguf", &tiny())]);
    let output = repository.command(&["hf:u/tiny-GGUF"]).env_remove("OUTPOST_PULL_ALLOWED_HOSTS").output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("127.0.0.1") && error.contains("--allow-host"), "{error}");
    assert!(repository.cdn.requests().is_empty());
}

#[test]
fn https_is_verified_and_not_left() {
    let certified = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let mut repository = Repository::new();
    repository.hub = HubServer::start_tls(server_config(&certified));
    repository.add("tiny-F32.gguf", &tiny());
    refused(&repository, &[], &["cannot be reached", "certificate"]);
    let certificate = repository.folder.path().join("ca.pem");
    std::fs::write(&certificate, certified.cert.pem()).unwrap();
    let output = repository.command(&["hf:u/tiny-GGUF"]).env("SSL_CERT_FILE", &certificate).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("which is not encrypted"), "{error}");
    assert!(repository.cdn.requests().is_empty());
}

#[test]
fn options_and_settings_are_checked() {
    let repository = Repository::new();
    let error = |arguments: &[&str]| repository.pull_error(arguments);
    for option in ["--list", "--force"] {
        let text = format!("{option} is not for models of the catalog");
        assert!(error(&["smollm2-135m-instruct", option]).contains(&text));
    }
    assert!(error(&["hf:u/a", "hf:u/b", "--name", "x"]).contains("--name is only for one model"));
    assert!(error(&["hf:u"]).contains("hf:USER/REPO"));
    assert!(error(&["x:llama3.2"]).contains("neither a name of the catalog nor of a source"));
    assert!(repository.hub.requests().is_empty());
    for (name, value, part) in [
        ("HF_HUB_OFFLINE", "1", "HF_HUB_OFFLINE is set"),
        ("HF_ENDPOINT", "ftp://x", "HF_ENDPOINT does not begin with https://"),
        ("HF_TOKEN", "a\u{7}b", "HF_TOKEN has characters"),
        ("OUTPOST_OLLAMA_REGISTRY", "registry", "OUTPOST_OLLAMA_REGISTRY does not begin with https://"),
        ("OUTPOST_OCI_USERNAME", "u", "OUTPOST_OCI_USERNAME and OUTPOST_OCI_PASSWORD must be set together"),
        ("OUTPOST_OCI_REGISTRY", "a/b", "OUTPOST_OCI_REGISTRY: 'a/b' is not a host"),
    ] {
        let output = repository.command(&["hf:u/tiny-GGUF"]).env(name, value).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(part), "{name}: {error}");
    }
    let repository = Repository::with(&[("tiny-F32.gguf", &tiny())]);
    refused(&repository, &["--name", "../x"], &["'../x' cannot be the name of a model"]);
    refused(&repository, &["--name", "loras"], &["'loras' cannot be the name of a model"]);
}

#[test]
fn a_disk_without_space_is_refused_with_figures() {
    let mount = ["-rm", "sh", "-c", "mount -t tmpfs -o size=8m none models && exec \"$0\" \"$@\""];
    let repository = Repository::with(&[("tiny-F32.gguf", &tiny())]);
    std::fs::create_dir(repository.models()).unwrap();
    let in_small_disk = |command: &Command| {
        let mut inside = Command::new("unshare");
        inside.args(mount).arg(command.get_program()).args(command.get_args()).current_dir(repository.folder.path());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside.output()
    };
    if !in_small_disk(&Command::new("true")).is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this machine allows no mount namespaces, or has no 'unshare'");
        return;
    }
    let error = failed(in_small_disk(&repository.command(&["hf:u/tiny-GGUF"])).unwrap());
    assert!(error.contains("is full") && error.contains("free bytes are needed"), "{error}");
    // The header has been read, and nothing else.
    assert!(repository.cdn.requests().len() <= 2);
}
