//! `outpost models pull oci:…` of artifacts whose layers are tar archives.

use outpost_testing::fixtures::fixture;
use std::fs;
use std::sync::LazyLock;

use crate::hub_server::Fault;
use crate::registry::*;
use crate::repository::{read, tiny};
use crate::support::sha256;
use crate::tiny_model::{self, TinyModel};

const TAR: &str = "application/vnd.cncf.model.weight.v1.tar";
/// Too long for the name in a header.
const LONG_NAME: &str =
    "a-folder-with-a-name/and-another-folder-with-a-longer-name/and-a-third-one-so-that-a-header-is-too-short/m.gguf";

/// A model that is larger than a small archive.
static LARGE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let model = tiny_model::bytes(&TinyModel { width: 512, zero_blocks: 6, ..TinyModel::default() });
    assert!(model.len() > 33 << 20, "{} bytes", model.len());
    model
});

/// An archive of files, and of folders, which have no content. Paths longer than 100 bytes get an extension header.
fn tar(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, content) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(if path.ends_with('/') { tar::EntryType::Directory } else { tar::EntryType::Regular });
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        match header.as_mut_bytes().get_mut(..path.len()) {
            // The crate refuses to write a path with `..`.
            Some(name) if path.len() < 100 => {
                name.copy_from_slice(path.as_bytes());
                header.set_cksum();
                archive.append(&header, *content).unwrap();
            }
            _ => archive.append_data(&mut header, path, *content).unwrap(),
        }
    }
    archive.into_inner().unwrap()
}

fn with_archives(archives: &[Vec<u8>]) -> Registry {
    let mut registry = Registry::new("u/m");
    archives.iter().for_each(|archive| registry.layer(TAR, None, archive));
    registry.publish("latest");
    registry
}

fn blob(archive: &[u8]) -> String {
    format!("/blobs/{}", sha256(archive))
}

fn pull(registry: &Registry) -> String {
    registry.pull_ok(&[&registry.oci("")])
}

/// Pulls, expects the parts in the error, and nothing in the models folder.
fn refused(registry: &Registry, parts: &[&str]) {
    let error = registry.pull_error(&[&registry.oci("")]);
    parts.iter().for_each(|part| assert!(error.contains(part), "'{part}' is not in: {error}"));
    assert!(registry.installed().is_empty());
}

#[test]
fn files_of_small_archives_are_installed() {
    let registry = with_archives(&[
        tar(&[("./m.gguf", &tiny()), ("empty.txt", b"")]),
        tar(&[("docs/", b""), ("LICENSE", b"Apache License"), ("../evil.gguf", b"x")]),
    ]);
    let text = pull(&registry);
    assert!(text.contains("license Apache License") && text.contains("its 2 files have the expected hashes"), "{text}");
    let folder = registry.folder.path().join("models/m");
    assert_eq!(read(&folder.join("m.gguf")), tiny());
    assert_eq!(read(&folder.join("LICENSE")), b"Apache License");
    assert!(pull(&registry).contains("installed already"));
}

#[test]
fn a_folder_is_installed_from_an_archive_of_its_small_files_and_layers_of_weights() {
    let fixture = fixture("encoders/nomic-old");
    let file = |name: &str| read(&fixture.join(name));
    let small =
        ["config.json", "tokenizer.json", "modules.json", "1_Pooling/config.json"].map(|name| (name, file(name)));
    let small = small.each_ref().map(|(name, content)| (*name, content.as_slice()));
    let mut registry = Registry::new("u/encoder");
    registry.layer("application/vnd.docker.ai.vllm.config.tar", None, &tar(&small));
    registry.layer("application/vnd.docker.ai.safetensors", None, &file("model.safetensors"));
    registry.publish("latest");
    let text = pull(&registry);
    assert!(text.contains("its 5 files have the expected hashes"), "{text}");
    let folder = registry.folder.path().join("models/encoder");
    for (name, content) in small {
        assert_eq!(read(&folder.join(name)), content, "{name}");
    }
}

#[test]
fn the_file_of_a_large_archive_is_resumed_verified_and_recorded() {
    let archive = tar(&[("a-folder-with-a-name/", b""), (LONG_NAME, &LARGE)]);
    let registry = with_archives(std::slice::from_ref(&archive));
    // Three reads while the model is planned, and one byte for the length; then each part breaks once.
    let cuts = [1 << 30, 1 << 30, 1 << 30, 1 << 30, 2 << 20, 3 << 20].map(Fault::CutAfter);
    registry.cdn.fail_next(&blob(&archive), cuts);
    let text = pull(&registry);
    assert!(text.contains("is the expected one"), "{text}");
    let folder = registry.folder.path().join("models/m");
    assert_eq!(read(&folder.join("m.gguf")), *LARGE);
    let source = fs::read_to_string(folder.join("source.toml")).unwrap();
    assert!(source.contains("integrity = \"verified\"") && source.contains(&sha256(&LARGE)), "{source}");
    // Only the content is downloaded, and interrupted parts are resumed.
    let requests = registry.cdn.requests_for(&blob(&archive));
    let ranges: Vec<(usize, usize)> = requests.iter().map(|request| request.range().unwrap()).collect();
    let content = archive.windows(4).position(|bytes| bytes == b"GGUF").unwrap();
    let is_resumed =
        |(first, _): &&(usize, usize)| [2 << 20, 3 << 20].contains(&(first.saturating_sub(content) % (32 << 20)));
    assert_eq!(ranges.iter().filter(is_resumed).count(), 2, "{content}: {ranges:?}");
    assert!(ranges.iter().all(|(_, last)| *last < content + LARGE.len() || *last == archive.len() - 1), "{ranges:?}");
    registry.cdn.forget_requests();
    assert!(pull(&registry).contains("installed already"));
    let read: usize =
        registry.cdn.requests().iter().filter_map(|it| it.range()).map(|(first, last)| last - first).sum();
    assert!(read < 6 << 20, "{read} bytes");
}

#[test]
fn damaged_archives_are_refused() {
    let (small, large) = (tar(&[("m.gguf", &tiny())]), tar(&[("m.gguf", &LARGE)]));
    let damage_content = |archive: &mut Vec<u8>| archive[1 << 16] ^= 1;
    // Two digits of the permissions, which leaves the header's own checksum as it is.
    let damage_header = |archive: &mut Vec<u8>| archive.swap(103, 104);
    for (archive, error) in [(&small, "a layer has the sha256"), (&large, "has the hash")] {
        for damage in [&damage_content as &dyn Fn(&mut Vec<u8>), &damage_header] {
            let registry = with_archives(std::slice::from_ref(archive));
            let mut damaged = archive.clone();
            damage(&mut damaged);
            assert_ne!(damaged, *archive);
            registry.cdn.add(&blob(archive), damaged);
            refused(&registry, &[error]);
        }
    }
}

#[test]
fn a_registry_without_ranges_is_refused() {
    let archive = tar(&[("m.gguf", &LARGE)]);
    for (fault, error) in [(Fault::IgnoreRange, "it has no ranges"), (Fault::WrongRange, "Content-Range is")] {
        let registry = with_archives(std::slice::from_ref(&archive));
        // Reads of the start, of the end and of the header; then every answer is wrong.
        registry.cdn.fail_next(&blob(&archive), [1 << 30, 1 << 30, 1 << 30, 1 << 30].map(Fault::CutAfter));
        registry.cdn.fail_always(&blob(&archive), Some(fault));
        refused(&registry, &[error]);
    }
}

/// ORAS gives files the media type of archives.
#[test]
fn a_named_file_with_the_media_type_of_an_archive_is_a_file() {
    let mut registry = Registry::new("u/m");
    let media_type = "application/vnd.oci.image.layer.v1.tar";
    registry.layer(media_type, Some((TITLE, "m.gguf")), &LARGE);
    registry.layer(media_type, Some((TITLE, "LICENSE")), b"MIT");
    registry.publish("latest");
    assert!(pull(&registry).contains("its 2 files have the expected hashes"));
    assert_eq!(read(&registry.folder.path().join("models/m/m.gguf")), *LARGE);
}

/// The tar crate's own reader panics at this one.
#[test]
fn a_sparse_file_of_an_absurd_size_is_left_out() {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::GNUSparse);
    header.set_path("m.gguf").unwrap();
    let gnu = header.as_gnu_mut().unwrap();
    gnu.isextended = [1];
    gnu.size = [0; 12];
    gnu.size[0] = 0x80;
    gnu.size[4..].copy_from_slice(&(u64::MAX - 1023).to_be_bytes());
    header.set_cksum();
    let archive = [header.as_bytes().as_slice(), &[0; 512]].concat();
    refused(&with_archives(&[archive]), &["it has no GGUF"]);
}

#[test]
fn the_files_of_archives_have_a_limit() {
    let names: Vec<String> = (0..1025).map(|index| format!("LICENSE-{index}")).collect();
    let files: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), b"MIT".as_slice())).collect();
    refused(&with_archives(&[tar(&files)]), &["its archives have more than 1024 files"]);
}

#[test]
fn archives_that_cannot_be_read_say_why() {
    let why =
        "its layers cannot be read: they are compressed archives, large archives with several files, or no archives";
    let large = |entries: &[(&str, &[u8])]| refused(&with_archives(&[tar(entries)]), &[why, TAR]);
    large(&[("m.gguf", &LARGE), ("config.json", b"{}")]);
    large(&[("config.json", b"{}"), ("m.gguf", &LARGE)]);
    refused(&with_archives(&[b"no archive".to_vec()]), &[why, TAR]);
    refused(&with_archives(&[vec![1; 33 << 20]]), &[why, TAR]);
    // An archive that ends within its file.
    let mut short = tar(&[("m.gguf", &LARGE)]);
    short.truncate(33 << 20);
    refused(&with_archives(&[short]), &[why, TAR]);
}
