//! An import writes only into the models folder and reads only from its source, for any archive or folder.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use outpost_hub::catalog::progress::Silent;
use outpost_hub::catalog::{ImportOptions, import};
use tar::EntryType;

use crate::malicious_archives::{Item, archive, item, manifest};
use crate::support::{TestBench, tree, write_folder};

const SECRET: &[u8] = b"GGUF of somebody else";

/// A folder with a secret next to the models folder, and its initial content.
struct Outside {
    bench: TestBench,
    before: Vec<(String, Vec<u8>)>,
}

impl Outside {
    fn new() -> Self {
        let bench = TestBench::new();
        write_folder(&bench.path("outside"), &[("secret", SECRET), ("d/secret.gguf", SECRET)]);
        let before = tree(&bench.path("outside"));
        Self { bench, before }
    }

    /// Whether nothing outside of the models folder has changed, and no model contains the secret.
    fn is_safe(&self) -> bool {
        let taken = |(_, bytes): &(String, Vec<u8>)| bytes == SECRET;
        tree(&self.bench.path("outside")) == self.before
            && !tree(&self.bench.models()).iter().any(taken)
            && links(&self.bench.models()) == 0
            && names(&self.bench.path("")) == ["models", "outside", "pip", "source"]
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The entries below a folder that are neither files nor folders.
fn links(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    let count = |entry: fs::DirEntry| match entry.file_type().unwrap() {
        kind if kind.is_dir() => links(&entry.path()),
        kind => usize::from(!kind.is_file()),
    };
    entries.map(count).sum()
}

#[test]
fn no_archive_writes_or_reads_outside_the_models_folder() {
    let kinds = [
        EntryType::Regular,
        EntryType::Symlink,
        EntryType::Link,
        EntryType::Fifo,
        EntryType::Char,
        EntryType::Block,
        EntryType::Directory,
        EntryType::Continuous,
        EntryType::GNUSparse,
        EntryType::GNULongName,
        EntryType::GNULongLink,
        EntryType::XHeader,
        EntryType::XGlobalHeader,
    ];
    let paths = [
        "files/w.gguf",
        "files/x",
        "files/../../../outside/x",
        "../../outside/x",
        "/tmp/outpost-escape",
        "files/./x",
        "files//x",
        "files/..",
        "..",
        "files/d/../../../../outside/secret",
        "files\\..\\x",
        "manifest.json",
    ];
    let targets = ["", "../../../outside/secret", "/etc/passwd", "w.gguf", "../../../outside/d"];
    let (mut tried, mut taken) = (0, 0);
    for kind in kinds {
        for path in paths {
            for link in targets {
                let outside = Outside::new();
                let evil = || Item { path, kind, link, content: b"GGUF" };
                // The listed file comes last, because an earlier entry may have created something at its path.
                let tar = archive(&manifest(&["w.gguf"]), &[evil(), item("files/w.gguf", b"GGUF")]);
                let source = write_folder(&outside.bench.path("source"), &[("m.tar", &tar)]).join("m.tar");
                taken +=
                    usize::from(import(&outside.bench.models(), &source, &Default::default(), &mut Silent).is_ok());
                assert!(outside.is_safe(), "{kind:?} {path} {link}");
                tried += 1;
            }
        }
    }
    // A file below an entry that is a symbolic link to a folder.
    for link in targets {
        for kind in [EntryType::Symlink, EntryType::Link] {
            let outside = Outside::new();
            let through = [Item { path: "files/d", kind, link, content: b"" }, item("files/d/w.gguf", b"GGUF")];
            let tar = archive(&manifest(&["d/w.gguf"]), &through);
            let source = write_folder(&outside.bench.path("source"), &[("m.tar", &tar)]).join("m.tar");
            assert!(import(&outside.bench.models(), &source, &Default::default(), &mut Silent).is_err());
            assert!(outside.is_safe(), "{kind:?} {link}");
            tried += 1;
        }
    }
    assert!(!Path::new("/tmp/outpost-escape").exists());
    assert_eq!((tried, taken), (790, 0), "archives tried, and taken");
}

#[test]
fn entries_swapped_during_an_import_are_not_followed() {
    let outside = Outside::new();
    let bench = &outside.bench;
    let source = bench.path("source");
    let files: [(&str, &[u8]); 3] = [("a.safetensors", b"own"), ("config.json", b"{}"), ("d/secret.gguf", b"own")];
    write_folder(&source, &files);
    let stop = AtomicBool::new(false);
    let (mut taken, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // A file and a folder are repeatedly replaced by symbolic links to the outside, and restored.
            let [file, folder, saved] = [source.join("a.safetensors"), source.join("d"), bench.path("kept")];
            let [link, own] = [bench.path("link"), bench.path("own")];
            while !stop.load(Ordering::Relaxed) {
                symlink(bench.path("outside/secret"), &link).unwrap();
                fs::rename(&link, &file).unwrap();
                fs::rename(&folder, &saved).unwrap();
                symlink(bench.path("outside/d"), &folder).unwrap();
                std::thread::yield_now();
                fs::remove_file(&folder).unwrap();
                fs::rename(&saved, &folder).unwrap();
                fs::write(&own, "own").unwrap();
                fs::rename(&own, &file).unwrap();
            }
        });
        for round in 0..150 {
            let options = ImportOptions { name: Some("m".into()), force: true };
            match import(&bench.models(), &source, &options, &mut Silent) {
                Ok(_) => taken += 1,
                Err(_) => refused += 1,
            }
            let escaped = tree(&bench.models()).into_iter().find(|(_, bytes)| bytes == SECRET);
            assert!(escaped.is_none() && links(&bench.models()) == 0, "round {round}: {escaped:?}");
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(taken + refused, 150);
    assert!(outside.is_safe(), "{taken} taken, {refused} refused");
}
