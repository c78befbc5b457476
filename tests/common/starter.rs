//! The starter models. Pulls them if they are missing.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The models folder: `$OUTPOST_TEST_MODELS`, or `models/` in the checkout.
pub fn models() -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(pull).clone()
}

fn pull() -> PathBuf {
    let default = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models");
    let folder = std::env::var_os("OUTPOST_TEST_MODELS").map_or_else(default, PathBuf::from);
    let pulled = Command::new(env!("CARGO_BIN_EXE_outpost"))
        .args(["models", "pull", "starter", "--models"])
        .arg(&folder)
        .status()
        .unwrap();
    assert!(
        pulled.success(),
        "the starter models could not be pulled; 'outpost models import' installs them from a file"
    );
    folder
}
