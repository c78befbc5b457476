//! Writes scripts that stand in for other programs.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes an executable script in a process of its own. If this process wrote it, a child that another test starts at that
/// moment would hold the file open, and the script could not be run ("text file busy").
pub fn write_script(path: &Path, text: &str) {
    let mut install = Command::new("install");
    let mut child = install.args(["-m", "755", "/dev/stdin"]).arg(path).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{}", path.display());
}
