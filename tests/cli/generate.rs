use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::process::{output_text, run};

#[test]
fn each_command_has_a_man_page() {
    let folder = tempfile::tempdir().unwrap();
    let made = run(folder.path(), &["generate", "man", "--to", "out/man1"]);
    assert!(made.status.success(), "{}", output_text(&made));
    let page = |name: &str| fs::read_to_string(folder.path().join("out/man1").join(name));
    for name in ["outpost.1", "outpost-serve.1", "outpost-models-pull.1", "outpost-store-copy.1"] {
        let text = page(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(text.contains(".TH outpost") && text.contains("DESCRIPTION"), "{name}: {text}");
    }
    assert!(page("outpost-serve.1").unwrap().contains(r"\-\-listen"));
    // Commands for internal use are not documented.
    assert!(page("outpost-sandbox.1").is_err() && page("outpost-generate.1").is_err());
    assert!(!page("outpost.1").unwrap().contains("sandbox"));
}

#[test]
fn each_shell_has_completions_with_all_commands() {
    let folder = tempfile::tempdir().unwrap();
    let made = run(folder.path(), &["generate", "completions", "--to", "."]);
    assert!(made.status.success(), "{}", output_text(&made));
    for (shell, file) in [("bash", "outpost.bash"), ("zsh", "_outpost"), ("fish", "outpost.fish")] {
        let printed = output_text(&run(folder.path(), &["completions", shell]));
        for word in ["serve", "models", "pull", "max-running", "admin-key"] {
            assert!(printed.contains(word), "{shell}: {word}");
        }
        // The printed text equals that of the packages.
        assert_eq!(printed, fs::read_to_string(folder.path().join(file)).unwrap(), "{shell}");
        if shell != "fish" {
            assert_valid(shell, &folder.path().join(file));
        }
    }
    let unknown = run(folder.path(), &["completions", "tcsh"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(output_text(&unknown).contains("[possible values: bash, zsh, fish]"), "{}", output_text(&unknown));
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    for kind in ["man", "completions"] {
        let refused = run(folder.path(), &["generate", kind, "--to", "file/below"]);
        assert_eq!(refused.status.code(), Some(1));
        assert!(output_text(&refused).contains("cannot create file/below"), "{}", output_text(&refused));
    }
}

/// The shell can read the script, if the shell is installed.
fn assert_valid(shell: &str, script: &Path) {
    let checked = Command::new(shell).arg("-n").arg(script).stdin(Stdio::null()).output();
    assert!(checked.is_err() || checked.is_ok_and(|checked| checked.status.success()), "{shell}");
}
