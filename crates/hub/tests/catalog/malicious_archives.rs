//! Malicious archives: each is refused with an error that names the entry, and nothing is left behind.

use std::fs;

use outpost_hub::catalog::import;
use outpost_hub::catalog::progress::Silent;
use tar::EntryType;

use crate::support::{TestBench, sha256, tree};

/// An archive entry. Its header may be invalid.
pub struct Item {
    pub path: &'static str,
    pub kind: EntryType,
    pub link: &'static str,
    pub content: &'static [u8],
}

pub fn item(path: &'static str, content: &'static [u8]) -> Item {
    Item { path, kind: EntryType::Regular, link: "", content }
}

pub fn special(path: &'static str, kind: EntryType, link: &'static str) -> Item {
    Item { path, kind, link, content: b"" }
}

fn write_item(out: &mut Vec<u8>, path: &str, kind: EntryType, link: &str, content: &[u8]) {
    let mut header = tar::Header::new_ustar();
    // Written directly, because the crate refuses these names.
    header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
    header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(content.len() as u64);
    header.set_cksum();
    out.extend(header.as_bytes());
    out.extend(content);
    out.resize(out.len().next_multiple_of(512), 0);
}

/// A tar archive of these entries.
pub fn tar_of(items: &[Item]) -> Vec<u8> {
    let mut out = Vec::new();
    for item in items {
        write_item(&mut out, item.path, item.kind, item.link, item.content);
    }
    out.resize(out.len() + 1024, 0);
    out
}

pub fn archive(manifest: &str, items: &[Item]) -> Vec<u8> {
    let mut out = Vec::new();
    write_item(&mut out, "manifest.json", EntryType::Regular, "", manifest.as_bytes());
    [out, tar_of(items)].concat()
}

/// A manifest that lists files with these names and the content "GGUF".
pub fn manifest(names: &[&str]) -> String {
    let file = |name: &&str| format!("{{\"name\": \"{name}\", \"bytes\": 4, \"sha256\": \"{}\"}}", sha256(b"GGUF"));
    let files = names.iter().map(file).collect::<Vec<_>>().join(", ");
    format!("{{\"format\": \"outpost-model\", \"version\": 1, \"name\": \"m\", \"files\": [{files}]}}")
}

/// Imports an archive and returns the error. Checks that nothing was written to the models folder or next to it.
fn import_error(bytes: &[u8]) -> String {
    let bench = TestBench::new();
    let tar = bench.path("m.tar");
    fs::write(&tar, bytes).unwrap();
    let before = tree(&bench.path(""));
    let error = import(&bench.models(), &tar, &Default::default(), &mut Silent).unwrap_err().to_string();
    let mut after = tree(&bench.path(""));
    after.retain(|(name, _)| name != "models/.pull/m.lock");
    assert_eq!(before, after, "{error}");
    error
}

#[test]
fn malicious_entries_are_refused_by_name() {
    let good = || item("files/w.gguf", b"GGUF");
    let table: Vec<(&str, &str, Vec<Item>)> = vec![
        ("files/link", "symbolic link", vec![good(), special("files/link", EntryType::Symlink, "/etc/passwd")]),
        ("files/w.gguf", "symbolic link", vec![special("files/w.gguf", EntryType::Symlink, "../../../x")]),
        ("files/hard", "hard link", vec![good(), special("files/hard", EntryType::Link, "/etc/shadow")]),
        ("files/fifo", "FIFO", vec![special("files/fifo", EntryType::Fifo, "")]),
        ("files/null", "device", vec![special("files/null", EntryType::Char, "")]),
        ("files/disk", "device", vec![special("files/disk", EntryType::Block, "")]),
        ("files/dir", "folder", vec![special("files/dir", EntryType::Directory, "")]),
        ("files/sparse", "special type", vec![special("files/sparse", EntryType::GNUSparse, "")]),
        ("././@LongLink", "special type", vec![special("././@LongLink", EntryType::GNULongName, "")]),
        ("pax", "special type", vec![special("pax", EntryType::XHeader, ""), good()]),
        ("/etc/cron.d/evil", "absolute path", vec![good(), item("/etc/cron.d/evil", b"GGUF")]),
        ("files/../../evil", "'..'", vec![good(), item("files/../../evil", b"GGUF")]),
        ("../evil", "'..'", vec![good(), item("../evil", b"GGUF")]),
        ("files//w.gguf", "empty", vec![item("files//w.gguf", b"GGUF")]),
        ("./files/w.gguf", "'.'", vec![item("./files/w.gguf", b"GGUF")]),
        ("files\\w.gguf", "character", vec![item("files\\w.gguf", b"GGUF")]),
        ("w.gguf", "not in the manifest", vec![item("w.gguf", b"GGUF")]),
        ("files/w.gguf", "appears twice", vec![good(), good()]),
        ("files/more", "not in the manifest", vec![good(), item("files/more", b"GGUF")]),
        ("manifest.json", "not in the manifest", vec![good(), item("manifest.json", b"{}")]),
        ("files/w.gguf", "5 bytes", vec![item("files/w.gguf", b"GGUF!")]),
        ("files/w.gguf", "3 bytes", vec![item("files/w.gguf", b"GGU")]),
        ("files/w.gguf", "sha256", vec![item("files/w.gguf", b"GGUX")]),
        ("files/w.gguf", "missing", vec![]),
    ];
    for (entry, why, items) in table {
        let error = import_error(&archive(&manifest(&["w.gguf"]), &items));
        assert!(error.contains(&format!("'{entry}'")) && error.contains(why), "{entry} {why}: {error}");
    }
}

#[test]
fn malicious_manifests_are_refused() {
    let one = manifest(&["w.gguf"]);
    let table = [
        (manifest(&["../w.gguf"]), "'..'"),
        (manifest(&["/w.gguf"]), "absolute"),
        (manifest(&["a", "A"]), "appears twice"),
        (manifest(&[]), "lists no files"),
        (one.replace("\"m\"", "\"\\u001b[2Jm\\n\""), "'\\u{1b}[2Jm\\u{a}', which is not a valid model name"),
        (one.replace("\"m\"", "\"../m\""), "not a valid model name"),
        (one.replace("\"bytes\": 4", "\"bytes\": 18446744073709551615"), "too large"),
        (one.replace("\"bytes\": 4", "\"bytes\": -1"), "cannot be read"),
        (one.replace("\"version\": 1", "\"version\": 2"), "'outpost-model' 2"),
        (one.replace("\"sha256\": \"", "\"sha256\": \"x"), "sha256"),
        (one.replace("\"version\"", "\"run\": \"rm\", \"version\""), "run"),
        (format!("{one}{}", " ".repeat(5 << 20)), "too large"),
    ];
    for (text, why) in table {
        let error = import_error(&archive(&text, &[item("files/w.gguf", b"GGUF")]));
        assert!(error.contains("manifest") && error.contains(why), "{why}: {error}");
    }
}

#[test]
fn truncated_and_corrupt_archives_are_refused() {
    let whole = archive(&manifest(&["w.gguf"]), &[item("files/w.gguf", b"GGUF")]);
    for length in [0, 3, 100, 511, 512, 600, 1024, 1100, 1536, 1537] {
        let error = import_error(&whole[..length]);
        assert!(!error.is_empty(), "truncated to {length}");
    }
    let mut flipped = whole.clone();
    flipped[1030] ^= 1; // in the second header: its checksum is wrong
    assert!(import_error(&flipped).contains("damaged archive"));
    let mut endless = whole;
    endless[1024 + 124..1024 + 135].copy_from_slice(b"77777777777"); // claims 8 GiB, has four bytes
    assert!(import_error(&endless).contains("archive"));
}
