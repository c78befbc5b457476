//! Split files.

use std::fs;
use std::path::{Path, PathBuf};

use outpost_testing::split_gguf::{self, set};
use outpost_testing::tiny_model::{self, TinyModel};
use tempfile::TempDir;

use super::GgufFile;
use crate::weights::Weights;

/// A tiny model in three parts. The first has no tensors.
struct Split {
    folder: TempDir,
    parts: Vec<PathBuf>,
}

fn whole() -> Vec<u8> {
    tiny_model::bytes(&TinyModel::default())
}

fn split() -> Split {
    let folder = tempfile::tempdir().unwrap();
    let parts = split_gguf::write(folder.path(), "tiny", &whole(), &[0, 5]);
    Split { folder, parts }
}

impl Split {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

fn problem(path: &Path) -> String {
    GgufFile::open(path).unwrap_err().to_string()
}

/// The problem of a split file after a change of it.
fn problem_after(change: impl FnOnce(&Split)) -> String {
    let split = split();
    change(&split);
    let problem = problem(&split.parts[0]);
    // It does not depend on the part that is named.
    assert_eq!(self::problem(&split.parts[2]), problem);
    problem
}

#[test]
fn a_split_file_has_the_contents_of_the_whole_one() {
    let split = split();
    fs::write(split.path("whole.gguf"), whole()).unwrap();
    let one = GgufFile::open(&split.path("whole.gguf")).unwrap();
    let bytes = |file: &GgufFile, name: &str| {
        let rows = file.shape(name).unwrap()[0];
        file.rows(name, 0, rows).unwrap().bytes().unwrap()
    };
    for path in &split.parts {
        let several = GgufFile::open(path).unwrap();
        let (mut names, mut expected) = (several.names(), one.names());
        names.sort();
        expected.sort();
        assert_eq!(names, expected);
        assert!(names.iter().all(|name| bytes(&several, name) == bytes(&one, name)));
        assert_eq!(several.header.metadata.text("general.architecture"), Some("llama"));
        assert_eq!(several.header.parameters(), one.header.parameters());
        assert_eq!(several.length, split.parts.iter().map(|part| fs::metadata(part).unwrap().len()).sum::<u64>());
        let metadata = GgufFile::read_metadata(path).unwrap();
        assert_eq!(metadata.texts("tokenizer.ggml.tokens"), one.header.metadata.texts("tokenizer.ggml.tokens"));
    }
}

#[test]
fn missing_parts_are_named() {
    for missing in 0..3 {
        let (split, name) = (split(), format!("tiny-0000{}-of-00003.gguf", missing + 1));
        fs::remove_file(&split.parts[missing]).unwrap();
        let expected = format!("the split model lacks 1 of its 3 parts ({name}): put all parts into one folder");
        assert!(split.parts.iter().all(|path| problem(path) == expected));
    }
}

#[test]
fn a_damaged_part_is_named() {
    let cut = problem_after(|split| {
        let bytes = fs::read(&split.parts[1]).unwrap();
        fs::write(&split.parts[1], &bytes[..bytes.len() - 40]).unwrap();
    });
    assert!(cut.starts_with("tiny-00002-of-00003.gguf: the file is truncated: tensor "), "{cut}");
    assert!(cut.ends_with("; copy or download this part again"), "{cut}");
    let other = problem_after(|split| fs::write(&split.parts[2], "version https://git-lfs").unwrap());
    assert!(
        other.starts_with("tiny-00003-of-00003.gguf: not a GGUF file") && other.contains("git lfs pull"),
        "{other}"
    );
}

#[test]
fn a_part_of_another_split_is_named() {
    let other_count = problem_after(|split| {
        let parts = split_gguf::split(&whole(), &[3]);
        fs::write(&split.parts[1], &parts[1]).unwrap();
    });
    let expected = "tiny-00002-of-00003.gguf: its header says that it is part 2 of 2, not 2 of 3: it was renamed, or belongs \
        to another split model; replace it with the right part";
    assert_eq!(other_count, expected);
    let swapped = problem_after(|split| {
        fs::copy(&split.parts[2], &split.parts[1]).unwrap();
    });
    assert!(
        swapped.contains("tiny-00002-of-00003.gguf: its header says that it is part 3 of 3, not 2 of 3"),
        "{swapped}"
    );
    let unsplit = problem_after(|split| fs::write(&split.parts[1], whole()).unwrap());
    let words = ["tiny-00002-of-00003.gguf: its header has no split.no", "remove -00002-of-00003 from its name"];
    assert!(words.iter().all(|words| unsplit.contains(words)), "{unsplit}");
    let larger = problem_after(|split| {
        let parts = split_gguf::split(&tiny_model::bytes(&TinyModel { blocks: 3, ..TinyModel::default() }), &[0, 5]);
        fs::write(&split.parts[2], &parts[2]).unwrap();
    });
    assert!(larger.starts_with("tiny-00003-of-00003.gguf: split.tensors.count is "), "{larger}");
}

#[test]
fn each_tensor_is_in_one_part() {
    let twice = problem_after(|split| fs::write(&split.parts[1], &split_gguf::split(&whole(), &[0, 6])[1]).unwrap());
    assert!(twice.contains("is in several parts (tiny-00002-of-00003.gguf, tiny-00003-of-00003.gguf)"), "{twice}");
    let lacking = problem_after(|split| fs::write(&split.parts[1], &split_gguf::split(&whole(), &[0, 4])[1]).unwrap());
    assert!(lacking.starts_with("the parts have ") && lacking.contains("split.tensors.count says"), "{lacking}");
    let wrong = problem_after(|split| {
        split.parts.iter().for_each(|part| set(part, "split.tensors.count", &1i32.to_le_bytes()));
    });
    assert!(wrong.contains("split.tensors.count says 1: "), "{wrong}");
}

#[test]
fn a_part_with_another_name_says_how_to_name_it() {
    let split = split();
    fs::rename(&split.parts[1], split.path("renamed.gguf")).unwrap();
    let expected = "the file is part 2 of 3 of a split model: put all parts into one folder, and name this one \
        NAME-00002-of-00003.gguf";
    assert_eq!(problem(&split.path("renamed.gguf")), expected);
}

#[test]
fn too_many_parts_are_refused_before_any_is_opened() {
    let error = problem(Path::new("/nowhere/tiny-00001-of-00257.gguf"));
    assert!(error.contains("split into 257 files, and at most 256 can be read"), "{error}");
}
