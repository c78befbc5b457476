//! Copies with hashing.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use ring::digest::{Context, SHA256};

use outpost_common::display::hex;

/// Large enough to amortize system calls, small enough for the L2 cache.
const CHUNK: usize = 256 * 1024;

/// Size and hash of the copied bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Copied {
    pub bytes: u64,
    /// Lower-case hex.
    pub sha256: String,
}

/// Copies at most `limit` bytes. If the source has more, `bytes` exceeds `limit`, so a caller that compares sizes
/// notices without reading an endless source.
pub fn copy(
    reader: impl Read,
    writer: &mut dyn Write,
    limit: u64,
    on_bytes: &mut dyn FnMut(u64),
) -> io::Result<Copied> {
    let mut reader = reader.take(limit.saturating_add(1));
    let mut context = Context::new(&SHA256);
    let mut chunk = vec![0; CHUNK];
    let mut bytes = 0;
    loop {
        let read = match reader.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        context.update(&chunk[..read]);
        writer.write_all(&chunk[..read])?;
        bytes += read as u64;
        on_bytes(read as u64);
    }
    Ok(Copied { bytes, sha256: hex(context.finish().as_ref()) })
}

/// Hashes a whole file.
pub fn file(path: &Path, on_bytes: &mut dyn FnMut(u64)) -> io::Result<Copied> {
    copy(File::open(path)?, &mut io::sink(), u64::MAX, on_bytes)
}

/// SHA-256 of a short text, in hex.
pub fn text(text: &str) -> String {
    hex(ring::digest::digest(&SHA256, text.as_bytes()).as_ref())
}
