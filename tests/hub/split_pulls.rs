//! Pulls of split GGUF files.

use outpost_testing::split_gguf;
use serde_json::{Value, json};

use crate::hub_server::Fault;
use crate::process;
use crate::repository::*;
use crate::support::sha256;
use crate::tiny_model::{self, TinyModel};

const FOLDER: &str = "Q8_0";

/// A repository with a file in F32, and another quantisation in three parts in a folder. The first part has no tensors.
struct SplitRepository {
    repository: Repository,
    /// The paths and contents of the parts.
    parts: Vec<(String, Vec<u8>)>,
}

fn quantized() -> Vec<u8> {
    tiny_model::bytes(&TinyModel { quantized: true, width: 128, ..TinyModel::default() })
}

impl SplitRepository {
    fn new() -> Self {
        let parts = split_gguf::split(&quantized(), &[0, 6]);
        let names = split_gguf::names(&format!("{FOLDER}/Tiny-Q8_0"), parts.len());
        let mut repository = Repository::with(&[("Tiny-F32.gguf", &tiny())]);
        let parts: Vec<(String, Vec<u8>)> = names.into_iter().zip(parts).collect();
        // The hub's order does not matter.
        parts.iter().rev().for_each(|(path, content)| repository.add(path, content));
        Self { repository, parts }
    }

    fn bytes(&self) -> usize {
        self.parts.iter().map(|(_, content)| content.len()).sum()
    }

    /// Checks that all parts are installed, with the names that the model `name` gives them.
    fn check_installed(&self, name: &str) {
        let folder = self.repository.models().join(name);
        for ((_, content), local) in self.parts.iter().zip(split_gguf::names(name, 3)) {
            assert_eq!(&read(&folder.join(local)), content);
        }
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), 4, "and source.toml");
    }
}

#[test]
fn a_split_quantisation_is_one_row_and_is_installed_with_all_parts() {
    let split = SplitRepository::new();
    let listed = split.repository.pull_ok(&["hf:u/tiny-GGUF", "--list", "--json"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let rows = listed["candidates"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{listed}");
    let row = rows.iter().find(|row| row["quantization"] == "Q8_0").unwrap();
    let expected = json!([split.parts[0].0, split.bytes(), 3, true, null]);
    assert_eq!(json!([row["file"], row["bytes"], row["parts"], row["chosen"], row["unsupported"]]), expected);
    assert!(split.repository.installed().is_empty());

    let text = split.repository.pull_ok(&["hf:u/tiny-GGUF"]);
    assert!(text.lines().any(|line| line.starts_with("* Q8_0") && line.ends_with("chosen, 3 files")), "{text}");
    assert!(text.contains("tiny-q8_0 (") && text.contains("its 3 files have the expected hashes"), "{text}");
    split.check_installed("tiny-q8_0");
    let source = String::from_utf8(read(&split.repository.models().join("tiny-q8_0/source.toml"))).unwrap();
    assert!(split.parts.iter().all(|(_, content)| source.contains(&sha256(content))), "{source}");
    assert!(split.repository.pull_ok(&["hf:u/tiny-GGUF", "--verify"]).contains("installed already"));
}

#[test]
fn the_memory_of_a_split_file_is_that_of_the_whole_one() {
    let (split, whole) = (SplitRepository::new(), Repository::with(&[("Tiny-Q8_0.gguf", &quantized())]));
    let figures = |repository: &Repository| {
        let listed = repository.pull_ok(&["hf:u/tiny-GGUF:Q8_0", "--list", "--json"]);
        let listed: Value = serde_json::from_str(&listed).unwrap();
        ["memory_bytes", "parameters", "architecture", "context_window"].map(|key| listed[key].clone())
    };
    assert_eq!(figures(&split.repository), figures(&whole));
}

#[test]
fn the_path_of_a_part_means_the_whole_file() {
    for number in [1, 2] {
        let split = SplitRepository::new();
        let path = &split.parts[number - 1].0;
        split.repository.pull_ok(&[&format!("hf:u/tiny-GGUF:{path}"), "--name", "own"]);
        split.check_installed("own");
    }
}

#[test]
fn an_interrupted_download_keeps_the_finished_parts() {
    let split = SplitRepository::new();
    let cdn = &split.repository.cdn;
    let [first, last] = [0, 2].map(|index| format!("/blobs/{}", split.parts[index].0));
    // The probe and the header succeed.
    cdn.fail_next(&last, [Fault::CutAfter(1), Fault::CutAfter(1 << 30)]);
    cdn.fail_always(&last, Some(Fault::Status(404, Vec::new())));
    split.repository.pull_error(&["hf:u/tiny-GGUF:Q8_0"]);
    assert!(split.repository.installed().is_empty());
    cdn.fail_always(&last, None);
    cdn.forget_requests();
    let done: Value = serde_json::from_str(&split.repository.pull_ok(&["hf:u/tiny-GGUF:Q8_0", "--json"])).unwrap();
    let finished = split.parts[..2].iter().map(|(_, content)| content.len()).sum::<usize>();
    assert_eq!(done["resumed_bytes"], json!(finished));
    // The probe and the header, but not the file.
    assert_eq!((cdn.requests_for(&first).len(), cdn.requests_for(&last).len()), (2, 3));
    split.check_installed("tiny-q8_0");
}

#[test]
fn a_part_with_another_hash_is_refused() {
    let mut split = SplitRepository::new();
    let (path, content) = split.parts[1].clone();
    split.repository.siblings.retain(|sibling| sibling["rfilename"] != path.as_str());
    split.repository.add_linked(&path, &content, &"1".repeat(64));
    let error = split.repository.pull_error(&["hf:u/tiny-GGUF:Q8_0"]);
    assert!(error.contains("has the hash") && error.contains(&sha256(&content)), "{error}");
    assert!(split.repository.installed().is_empty());
    let error = split.repository.pull_error(&["hf:u/tiny-GGUF:Q8_0", "--sha256", &"1".repeat(64)]);
    assert!(error.contains("a sha256 is for one file, but hf:u/tiny-GGUF:Q8_0 has 3"), "{error}");
}

#[test]
fn a_quantisation_that_lacks_a_part_is_listed_and_not_chosen() {
    let mut split = SplitRepository::new();
    let lacking = split.parts[1].0.clone();
    split.repository.siblings.retain(|sibling| sibling["rfilename"] != lacking.as_str());
    split.repository.publish();
    let text = split.repository.pull_ok(&["hf:u/tiny-GGUF", "--list"]);
    assert!(text.lines().any(|line| line.starts_with("* F32")), "{text}");
    assert!(text.contains(&format!("cannot be installed: part {lacking} is missing from the source")), "{text}");
    let error = split.repository.pull_error(&["hf:u/tiny-GGUF:Q8_0"]);
    assert!(error.contains(&format!("cannot be served: part {lacking} is missing from the source")), "{error}");
}

#[test]
fn the_header_of_each_part_is_checked_before_the_download() {
    let mut split = SplitRepository::new();
    let (path, _) = split.parts[2].clone();
    split.repository.siblings.retain(|sibling| sibling["rfilename"] != path.as_str());
    // That of another split: there, it is part 2 of 2.
    split.repository.add(&path, &split_gguf::split(&quantized(), &[6])[1]);
    let error = split.repository.pull_error(&["hf:u/tiny-GGUF:Q8_0"]);
    assert!(error.contains("Tiny-Q8_0-00003-of-00003.gguf: its header says that it is part 2 of 2"), "{error}");
    assert!(split.repository.installed().is_empty());
}

#[test]
fn a_split_model_is_listed_exported_imported_and_removed_as_one() {
    let split = SplitRepository::new();
    let folder = split.repository.folder.path();
    split.repository.pull_ok(&["hf:u/tiny-GGUF:Q8_0"]);
    let run = |arguments: &[&str]| succeeded(process::run(folder, &[&["models"], arguments].concat()));
    let tar = folder.join("tiny.tar");
    run(&["export", "tiny-q8_0", tar.to_str().unwrap()]);
    run(&["import", tar.to_str().unwrap(), "--name", "copy"]);
    let names = split_gguf::names("tiny-q8_0", 3);
    assert!(
        names
            .iter()
            .zip(&split.parts)
            .all(|(name, (_, content))| { &read(&split.repository.models().join("copy").join(name)) == content })
    );
    run(&["remove", "tiny-q8_0"]);
    // Directly in the models folder, too.
    for name in &names {
        std::fs::rename(split.repository.models().join("copy").join(name), split.repository.models().join(name))
            .unwrap();
    }
    std::fs::remove_dir_all(split.repository.models().join("copy")).unwrap();
    let listed = run(&["list"]);
    assert_eq!(listed.matches("tiny-q8_0").count(), 1, "{listed}");
    run(&["remove", "tiny-q8_0"]);
    assert!(split.repository.installed().is_empty());
}
