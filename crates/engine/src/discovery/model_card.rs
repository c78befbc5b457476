//! The model card: the `README.md` of a Hugging Face folder.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

const MAX_BYTES: u64 = 4 << 20;

/// Its `license:` line.
pub(super) fn license(folder: &Path) -> Option<String> {
    let card = String::from_utf8_lossy(&read_prefix(&folder.join("README.md"))).into_owned();
    let front = card.strip_prefix("---")?.split("\n---").next()?.to_owned();
    let line = front.lines().find_map(|line| line.strip_prefix("license:"))?;
    let name = line.trim().trim_matches(['"', '\'']);
    (!name.is_empty()).then(|| name.to_owned())
}

/// The beginning of a file; empty if it cannot be read.
fn read_prefix(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    if fs::metadata(path).is_ok_and(|metadata| metadata.is_file())
        && let Ok(file) = File::open(path)
    {
        let _ = file.take(MAX_BYTES).read_to_end(&mut bytes);
    }
    bytes
}
