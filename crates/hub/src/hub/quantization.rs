//! The GGUF files and Whisper's `ggml-*.bin` files of a source, and which of them suits a machine.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::repository::HubFile;
use outpost_models::gguf::type_named;
use outpost_models::model_files::{SplitPart, companion, is_ggml, is_gguf, is_hidden_path};

/// In the names of files that are not models by themselves: importance matrices and draft heads.
const NOT_MODELS: [&str; 4] = ["imatrix", "mtp-", "eagle3-", "dflash-"];
/// Quantisations by preference: the first that fits is chosen.
const PREFERENCE: [&str; 15] = [
    "Q4_K_M",
    "Q4_K_S",
    "Q4_1",
    "Q4_0",
    "IQ4_XS",
    "IQ4_NL",
    "MXFP4_MOE",
    "MXFP4",
    "Q5_K_M",
    "Q5_K_S",
    "Q6_K",
    "Q8_0",
    "Q3_K_M",
    "Q2_K",
    "F16",
];
/// A file with 8 bits per weight that is smaller than this is preferred: models of fewer than about 2 billion weights
/// lose most by 4 bits.
const SMALL_BYTES: u64 = 2_200_000_000;

/// A GGUF file, or a `ggml-*.bin` file of Whisper.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The first part if it is split.
    pub file: HubFile,
    /// The further parts of a split file, in order.
    pub further: Vec<HubFile>,
    /// In upper case, such as `Q4_K_M`; `None` if the name has none.
    pub quantization: Option<String>,
    /// Of all parts.
    pub bytes: u64,
    pub state: State,
}

/// The suitability of a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Judged by its name.
    Possible,
    /// Judged by its header.
    Supported,
    Unsupported(String),
    /// The source does not have all parts of the split file, or there are too many; the text states the reason.
    Incomplete(String),
}

impl Candidate {
    /// The quantisation, or else the file's name.
    pub fn label(&self) -> &str {
        self.quantization.as_deref().unwrap_or(&self.file.path)
    }

    /// Whether it is a `ggml-*.bin` file, which is a model of its own and not one of several quantisations.
    pub(super) fn is_ggml(&self) -> bool {
        is_ggml(Path::new(&self.file.path))
    }

    /// Its file, or the parts of a split one.
    pub fn files(&self) -> impl Iterator<Item = &HubFile> {
        std::iter::once(&self.file).chain(&self.further)
    }

    /// Parts of a split file; 1 if it is whole.
    pub fn parts(&self) -> usize {
        1 + self.further.len()
    }

    /// Why it cannot be installed.
    pub fn problem(&self) -> Option<&str> {
        match &self.state {
            State::Unsupported(why) | State::Incomplete(why) => Some(why),
            State::Possible | State::Supported => None,
        }
    }

    pub fn is_possible(&self) -> bool {
        self.problem().is_none()
    }
}

/// The candidates, from the largest to the smallest.
pub(super) fn candidates(files: &[HubFile]) -> Vec<Candidate> {
    // By number.
    let mut splits: HashMap<(&str, usize), BTreeMap<usize, &HubFile>> = HashMap::new();
    for file in files {
        if let Some(SplitPart { stem, number, count, .. }) = SplitPart::of(&file.path) {
            splits.entry((stem, count)).or_default().insert(number, file);
        }
    }
    let mut found: Vec<Candidate> = Vec::new();
    for file in files.iter().filter(|file| is_model(&file.path)) {
        match SplitPart::of(&file.path) {
            None => found.push(candidate(file)),
            Some(part) if part.number == 1 => {
                let parts = splits.get(&(part.stem, part.count));
                found.extend(parts.map(|parts| split_candidate(file, part, parts)));
            }
            Some(_) => {}
        }
    }
    found.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.file.path.cmp(&other.file.path)));
    found
}

/// `parts`: those that the source has, by number.
fn split_candidate(file: &HubFile, part: SplitPart<'_>, parts: &BTreeMap<usize, &HubFile>) -> Candidate {
    let whole = candidate(file);
    let incomplete = match (1..=part.count).find(|number| !parts.contains_key(number)) {
        _ if part.count > SplitPart::MAX_COUNT => Some(format!(
            "it is split into {} files, and at most {} can be read; choose another file, or merge it with `llama-gguf-split --merge` and import the result",
            part.count,
            SplitPart::MAX_COUNT
        )),
        Some(number) => Some(format!("part {} is missing from the source; choose another file", part.path(number))),
        None => None,
    };
    Candidate {
        further: parts.range(2..).map(|(_, file)| (*file).clone()).collect(),
        bytes: parts.values().fold(0, |sum, file| sum.saturating_add(file.size.unwrap_or(0))),
        state: incomplete.map_or(whole.state, State::Incomplete),
        ..whole
    }
}

fn candidate(file: &HubFile) -> Candidate {
    let quantization = quantization(&file.path).filter(|_| !is_ggml(Path::new(&file.path)));
    let state = match &quantization {
        Some(name) if !is_supported(name) => State::Unsupported(format!("the type {name}")),
        _ => State::Possible,
    };
    Candidate { file: file.clone(), further: Vec::new(), quantization, bytes: file.size.unwrap_or(0), state }
}

fn is_model(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
    let is_gguf_model = is_gguf(Path::new(path))
        && companion(Path::new(path)).is_none()
        && !NOT_MODELS.iter().any(|other| name.contains(other));
    !is_hidden_path(path) && (is_gguf_model || is_ggml(Path::new(path)))
}

/// The quantisation in the name of a file: the last of the words between `-`, `.` and `/` that is one.
fn quantization(path: &str) -> Option<String> {
    let words = path.rsplit(['-', '.', '/']);
    words.map(str::to_ascii_uppercase).find(|word| is_quantization(word))
}

fn is_quantization(word: &str) -> bool {
    let starts_with_number = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
    let has_bits = ["Q", "IQ", "TQ"].iter().any(|kind| word.strip_prefix(kind).is_some_and(starts_with_number));
    has_bits || matches!(word, "F16" | "F32" | "BF16" | "MXFP4" | "MXFP4_MOE" | "NVFP4")
}

/// True if the type in the name is supported. The header decides in the end, because files mix types.
fn is_supported(name: &str) -> bool {
    let base = ["_XXS", "_XS", "_S", "_M", "_L", "_XL", "_MOE"].iter().find_map(|size| name.strip_suffix(size));
    // Most weights of IQ2_M, for example, have the type IQ2_S.
    let is_base = |base: &str| type_named(base).or_else(|| type_named(&format!("{base}_S"))).is_some();
    type_named(name).is_some() || base.is_some_and(is_base)
}

/// The candidates that `selector`, a quantisation or a path, means. The path of a part means the whole split file.
pub(super) fn select(candidates: &[Candidate], selector: &str) -> Vec<usize> {
    let is_file = is_gguf(Path::new(selector)) || is_ggml(Path::new(selector));
    let is_meant = |candidate: &Candidate| match is_file {
        true => candidate.files().any(|file| file.path == selector),
        false => candidate.quantization.as_ref().is_some_and(|name| name.eq_ignore_ascii_case(selector)),
    };
    candidates.iter().enumerate().filter(|(_, it)| is_meant(it)).map(|(index, _)| index).collect()
}

/// The candidates that can be chosen without being named, the best first. `limit`: the memory for models, in bytes.
pub(super) fn by_preference(candidates: &[Candidate], limit: u64) -> Vec<usize> {
    let rank = |candidate: &Candidate| {
        let name = candidate.label();
        let is_small = name == "Q8_0" && candidate.bytes < SMALL_BYTES;
        let place = PREFERENCE.iter().position(|preferred| *preferred == name).unwrap_or(PREFERENCE.len());
        // Files larger than the memory come last.
        (candidate.bytes > limit, if is_small { 0 } else { place + 1 })
    };
    let has_gguf = candidates.iter().any(|candidate| !candidate.is_ggml());
    let is_open = |candidate: &Candidate| candidate.is_possible() && !(has_gguf && candidate.is_ggml());
    let mut indices: Vec<usize> = (0..candidates.len()).filter(|index| is_open(&candidates[*index])).collect();
    indices.sort_by_key(|index| rank(&candidates[*index]));
    indices
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::download::{Checksum, Location, Request};

    fn files(list: &[(&str, u64)]) -> Vec<HubFile> {
        let request = Request::new(Location::parse("https://hub.example/f").unwrap(), None);
        let file = |&(path, size): &(&str, u64)| {
            let (path, request) = (path.to_owned(), request.clone());
            HubFile { path, size: Some(size), checksum: Checksum::None, request }
        };
        list.iter().map(file).collect()
    }

    const GB: u64 = 1_000_000_000;

    #[test]
    fn quantisations_are_read_from_names() {
        for (path, expected) in [
            ("Qwen2.5-7B-Instruct-Q4_K_M.gguf", Some("Q4_K_M")),
            ("qwen2.5-7b-instruct-q4_k_m.gguf", Some("Q4_K_M")),
            ("model.IQ2_XXS.gguf", Some("IQ2_XXS")),
            ("BF16/model-BF16-00001-of-00002.gguf", Some("BF16")),
            ("Qwen3-0.6B.gguf", None),
            ("Q4-model-f16.gguf", Some("F16")),
            ("gpt-oss-20b-MXFP4_MOE.gguf", Some("MXFP4_MOE")),
        ] {
            assert_eq!(quantization(path).as_deref(), expected, "{path}");
        }
        assert!(
            [
                "Q4_K_M",
                "Q8_0",
                "Q6_K",
                "IQ4_XS",
                "Q3_K_XL",
                "BF16",
                "MXFP4",
                "MXFP4_MOE",
                "IQ2_M",
                "IQ3_XS",
                "IQ1_S",
                "TQ1_0"
            ]
            .iter()
            .all(|name| is_supported(name))
        );
        assert!(["Q1_0", "Q8_K", "Q9_9", "Q9_M"].iter().all(|name| !is_supported(name)));
    }

    #[test]
    fn the_best_quantisation_that_fits_is_first() {
        let list = files(&[
            ("m-Q8_0.gguf", 8 * GB),
            ("m-Q6_K.gguf", 6 * GB),
            ("m-Q4_K_M.gguf", 5 * GB),
            ("m-Q2_K.gguf", 3 * GB),
            ("m-IQ2_M.gguf", 2 * GB),
            ("mmproj-m-f16.gguf", GB),
            ("._m-Q4_K_M.gguf", 1),
            (".ipynb_checkpoints/m-Q4_0.gguf", 1),
            ("m.imatrix.gguf", 1),
            ("README.md", 1),
            ("m-F16-00001-of-00002.gguf", 8 * GB),
            ("m-F16-00002-of-00002.gguf", 7 * GB),
        ]);
        let found = candidates(&list);
        let labels: Vec<_> = found.iter().map(|it| (it.label(), it.bytes / GB, it.parts())).collect();
        let expected =
            [("F16", 15, 2), ("Q8_0", 8, 1), ("Q6_K", 6, 1), ("Q4_K_M", 5, 1), ("Q2_K", 3, 1), ("IQ2_M", 2, 1)];
        assert_eq!(labels, expected);
        let order = |limit| by_preference(&found, limit).into_iter().map(|it| found[it].label()).collect::<Vec<_>>();
        assert_eq!(order(20 * GB), ["Q4_K_M", "Q6_K", "Q8_0", "Q2_K", "F16", "IQ2_M"]);
        assert_eq!(order(4 * GB)[0], "Q2_K");
        assert_eq!(select(&found, "q6_k"), [2]);
        assert_eq!(select(&found, "m-Q2_K.gguf"), [4]);
        assert_eq!(select(&found, "m-F16-00002-of-00002.gguf"), [0], "a part means the whole file");
        assert!(select(&found, "Q5_K_M").is_empty());
    }

    #[test]
    fn a_split_file_is_chosen_only_with_all_its_parts() {
        let part = |number: usize| (format!("Q8_0/m-Q8_0-{number:05}-of-00003.gguf"), GB);
        let listed = |parts: &[(String, u64)]| {
            let parts: Vec<(&str, u64)> = parts.iter().map(|(path, size)| (path.as_str(), *size)).collect();
            candidates(&files(&parts))
        };
        let whole = listed(&[part(3), part(1), part(2)]);
        let paths: Vec<&str> = whole[0].files().map(|file| file.path.as_str()).collect();
        let expected: Vec<String> = (1..=3).map(|number| part(number).0).collect();
        assert_eq!((whole.len(), whole[0].bytes, paths), (1, 3 * GB, expected.iter().map(String::as_str).collect()));
        assert_eq!(by_preference(&whole, 8 * GB), [0]);
        let lacking = listed(&[part(3), part(1)]);
        assert_eq!(
            lacking[0].problem(),
            Some("part Q8_0/m-Q8_0-00002-of-00003.gguf is missing from the source; choose another file")
        );
        assert!(by_preference(&lacking, 8 * GB).is_empty());
        assert!(listed(&[part(2), part(3)]).is_empty(), "without the first part, there is no header");
    }

    #[test]
    fn a_list_of_split_files_is_read_quickly() {
        let names: Vec<String> = (1..=50_000).map(|count| format!("m-00001-of-{count:05}.gguf")).collect();
        let mut list: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        list.extend([("m-00002-of-00002.gguf", 5), ("m-Q8_0-00002-of-00002.gguf", 9)]);
        let found = candidates(&files(&list));
        assert_eq!(found.len(), 50_000);
        assert_eq!((found[0].file.path.as_str(), found[0].bytes, found[0].parts()), ("m-00001-of-00002.gguf", 6, 2));
    }

    #[test]
    fn files_of_whisper_are_candidates_without_a_quantisation() {
        let list =
            files(&[("ggml-base.en.bin", 2), ("ggml-base-q5_1.bin", 1), ("pytorch_model.bin", 9), ("a-f16.gguf", 3)]);
        let found = candidates(&list);
        let labels: Vec<_> = found.iter().map(Candidate::label).collect();
        assert_eq!(labels, ["F16", "ggml-base.en.bin", "ggml-base-q5_1.bin"]);
        assert_eq!(select(&found, "ggml-base.en.bin"), [1]);
        assert_eq!(by_preference(&found, 10), [0], "a GGUF file is not mixed up with them");
        assert_eq!(by_preference(&candidates(&list[..2]), 10), [0, 1]);
    }

    #[test]
    fn small_models_keep_8_bits() {
        let found = candidates(&files(&[("m-q4_k_m.gguf", GB), ("m-q8_0.gguf", 2 * GB)]));
        assert_eq!(found[by_preference(&found, 8 * GB)[0]].label(), "Q8_0");
        let only = candidates(&files(&[("model.gguf", GB)]));
        assert_eq!(by_preference(&only, 8 * GB), [0]);
    }
}
