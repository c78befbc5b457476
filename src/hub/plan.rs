//! Decides what a pull will download, from the list of files and the header of one.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use super::client::Hub;
use super::error::HubError;
use super::hugging_face::Repository;
use super::quantization::{Candidate, State, by_preference, candidates, select};
use super::reference::HuggingFaceModel;
use crate::catalog::{is_model_name, is_reserved};
use crate::display::{format_bytes, one_line, shorten};
use crate::download::Checksum;
use crate::engine::{MemoryNeed, ModelInfo, Settings, gguf_memory};
use crate::models::gguf::MAX_HEADER_BYTES;
use crate::progress::Progress;

/// Bytes of the first read of a header. The next one is four times as long.
const FIRST_READ_BYTES: u64 = 4 << 20;
/// Headers that are read to find a model that is supported and fits.
const MAX_HEADERS: usize = 4;
/// Max candidates that an error lists.
const MAX_LISTED: usize = 30;

/// What limits the choice.
#[derive(Clone, Debug)]
pub struct PlanOptions {
    /// The model's name in the models folder; else that of the file.
    pub name: Option<String>,
    /// The expected hash, in lower-case hex.
    pub sha256: Option<String>,
    /// Threads and memory for models.
    pub settings: Settings,
}

/// A chosen file, and what is known of it.
#[derive(Clone, Debug)]
pub struct Plan {
    pub model: HuggingFaceModel,
    pub repository: Repository,
    pub candidates: Vec<Candidate>,
    /// An index of `candidates`.
    pub chosen: usize,
    /// The size of the chosen file, in bytes.
    pub bytes: u64,
    pub checksum: Checksum,
    pub info: ModelInfo,
    pub need: MemoryNeed,
    /// The memory for models, in bytes.
    pub limit: u64,
    /// The name that the model gets.
    pub name: String,
}

impl Plan {
    pub fn candidate(&self) -> &Candidate {
        &self.candidates[self.chosen]
    }

    /// The memory that another candidate needs, in bytes: that of the chosen one, with the weights in proportion to the file.
    pub fn estimate(&self, candidate: &Candidate) -> u64 {
        let others = self.need.total() - self.need.weights;
        let scaled = u128::from(self.need.weights) * u128::from(candidate.bytes) / u128::from(self.bytes.max(1));
        others.saturating_add(u64::try_from(scaled).unwrap_or(u64::MAX))
    }

    /// # Errors
    /// If the model would not fit into the memory for models.
    pub fn check_memory(&self) -> Result<(), HubError> {
        if self.need.total() <= self.limit {
            return Ok(());
        }
        let fits = |it: &&Candidate| it.is_possible() && self.estimate(it) <= self.limit;
        let smaller = self.candidates.iter().find(fits);
        let smaller = smaller.map(|it| format!("{} needs about {}", it.label(), format_bytes(self.estimate(it))));
        let (name, need, limit) = (self.name.clone(), Box::new(self.need), self.limit);
        Err(HubError::TooLarge { name, need, limit, smaller })
    }
}

impl Hub {
    /// Chooses a file of a repository and reads its header.
    pub fn plan(
        &self,
        model: &HuggingFaceModel,
        options: &PlanOptions,
        progress: &mut dyn Progress,
    ) -> Result<Plan, HubError> {
        let repository = self.repository(model, progress)?;
        let mut found = candidates(&repository.files);
        let limit = options.settings.memory_bytes;
        let order = order(model, &repository, &found, limit)?;
        let mut failed = None;
        let mut fallback = None;
        for index in order.iter().copied().take(MAX_HEADERS) {
            let candidate = found.get(index).cloned().ok_or_else(|| bad_answer(model, "a file is missing"))?;
            let read = self.read_candidate(model, &repository.commit, &candidate, &options.settings, progress);
            let (bytes, checksum, info, need) = match read {
                Ok(read) => read,
                Err(HubError::Unsupported { file, why }) => {
                    if let Some(candidate) = found.get_mut(index) {
                        candidate.state = State::Unsupported(why.clone());
                    }
                    failed.get_or_insert(HubError::Unsupported { file, why });
                    continue;
                }
                Err(other) => return Err(other),
            };
            if let Some(candidate) = found.get_mut(index) {
                (candidate.bytes, candidate.state) = (bytes, State::Supported);
            }
            let read = (index, bytes, checksum, info, need);
            // One that fits is better than a preferred one that does not.
            let fits = need.total() <= limit;
            if fits || fallback.is_none() {
                fallback = Some(read);
            }
            if fits {
                break;
            }
        }
        let Some((chosen, bytes, checksum, info, need)) = fallback else {
            return Err(failed.unwrap_or_else(|| no_model(model, &repository)));
        };
        check_hash(options.sha256.as_deref(), &checksum, &found[chosen])?;
        let checksum = options.sha256.clone().map_or(checksum, Checksum::Sha256);
        let name = name(options.name.as_deref(), &found[chosen])?;
        let model = model.clone();
        Ok(Plan { model, repository, candidates: found, chosen, bytes, checksum, info, need, limit, name })
    }

    /// Reads a candidate's header. Returns its size, checksum, description and memory.
    fn read_candidate(
        &self,
        model: &HuggingFaceModel,
        commit: &str,
        candidate: &Candidate,
        settings: &Settings,
        progress: &mut dyn Progress,
    ) -> Result<(u64, Checksum, ModelInfo, MemoryNeed), HubError> {
        let path = &candidate.file.path;
        let request = self.file_request(model, commit, path)?;
        let probe = self.downloader.probe(&request, progress).map_err(|error| self.explain(error, model))?;
        let header = |name: &str| probe.head.first.get(name).and_then(|value| value.to_str().ok());
        let linked_size = header("x-linked-size").and_then(|text| text.parse().ok());
        let size = candidate.file.size.or(linked_size).or(probe.length);
        let bytes = size.ok_or_else(|| bad_answer(model, &format!("it does not say how long {path} is")))?;
        if [linked_size, probe.length].into_iter().flatten().any(|other| other != bytes) {
            return Err(bad_answer(model, &format!("it gives several lengths of {path}")));
        }
        let linked = header("x-linked-etag").map(|text| text.trim_start_matches("W/").trim_matches('"').to_owned());
        let linked = linked.filter(|digest| crate::catalog::is_sha256(digest));
        let checksum = match (&candidate.file.checksum, linked) {
            (Checksum::Sha256(digest), Some(linked)) if *digest != linked => {
                return Err(bad_answer(model, &format!("it gives several hashes of {path}")));
            }
            (Checksum::None, Some(linked)) => Checksum::Sha256(linked),
            (known, _) => known.clone(),
        };
        if checksum == Checksum::None {
            return Err(bad_answer(model, &format!("it gives no hash of {path}")));
        }
        let unsupported = |why| HubError::Unsupported { file: path.clone(), why };
        let mut size = bytes.min(FIRST_READ_BYTES);
        loop {
            let start =
                self.downloader.range(&request, 0..size, progress).map_err(|error| self.explain(error, model))?;
            let is_short = matches!(
                crate::models::gguf::parse_header(&start, bytes),
                Err(crate::models::gguf::GgufError::Short(_))
            );
            if is_short && size < bytes.min(MAX_HEADER_BYTES) {
                size = bytes.min(MAX_HEADER_BYTES).min(size * 4);
                continue;
            }
            let (info, need) = describe(&start, bytes, settings)?.map_err(unsupported)?;
            return Ok((bytes, checksum, info, need));
        }
    }
}

/// Describes a GGUF file by its first bytes: they are written to a file of the same length whose rest is a hole, which
/// takes no space.
fn describe(
    start: &[u8],
    bytes: u64,
    settings: &Settings,
) -> Result<Result<(ModelInfo, MemoryNeed), String>, HubError> {
    let folder = tempfile::tempdir();
    let failed = |source| HubError::Io { path: std::env::temp_dir(), source };
    let folder = folder.map_err(failed)?;
    let path = folder.path().join("header.gguf");
    let write = || {
        let mut file = File::create_new(&path)?;
        file.write_all(start)?;
        file.set_len(bytes)
    };
    write().map_err(failed)?;
    Ok(gguf_memory(&path, settings))
}

/// The candidates to look at, the best first.
fn order(
    model: &HuggingFaceModel,
    repository: &Repository,
    found: &[Candidate],
    limit: u64,
) -> Result<Vec<usize>, HubError> {
    let whole: Vec<&str> = found.iter().filter(|it| it.is_possible()).map(Candidate::label).take(MAX_LISTED).collect();
    let known = if whole.is_empty() { "nothing else".to_owned() } else { whole.join(", ") };
    let Some(selector) = &model.selector else {
        let order = by_preference(found, limit);
        return match (order.is_empty(), found.first()) {
            (false, _) => Ok(order),
            (true, Some(Candidate { state: State::Unsupported(why), file, .. })) => {
                Err(HubError::Unsupported { file: file.path.clone(), why: format!("{why} is not supported") })
            }
            (true, Some(split)) => {
                Err(HubError::Split { reference: model.to_string(), file: split.label().to_owned(), known })
            }
            (true, None) => Err(no_model(model, repository)),
        };
    };
    match select(found, selector).as_slice() {
        &[only] if found[only].parts > 1 => {
            Err(HubError::Split { reference: model.to_string(), file: found[only].label().to_owned(), known })
        }
        &[only] => Ok(vec![only]),
        [] if found.is_empty() => Err(no_model(model, repository)),
        several => {
            let listed: Vec<&str> = several.iter().map(|index| found[*index].file.path.as_str()).collect();
            let known = if listed.is_empty() { known } else { listed.join(", ") };
            Err(HubError::NoCandidate { reference: model.to_string(), selector: shorten(selector), known })
        }
    }
}

fn no_model(model: &HuggingFaceModel, repository: &Repository) -> HubError {
    let count = |endings: &[&str]| {
        repository.files.iter().filter(|it| endings.iter().any(|ending| it.path.ends_with(ending))).count()
    };
    let why = match (count(&[".safetensors"]), count(&[".bin", ".pt", ".pth", ".ckpt"])) {
        (0, 0) => "it has no GGUF files".to_owned(),
        (0, pickles) => format!("it has {pickles} pickle files (.bin, .pt), which are never read, and no GGUF files"),
        (tensors, _) => {
            format!(
                "it has {tensors} safetensors files and no GGUF files; download its folder and run `outpost models import FOLDER`, or pull a repository of GGUF files of this model"
            )
        }
    };
    HubError::NoModel { reference: model.to_string(), why }
}

fn bad_answer(model: &HuggingFaceModel, why: &str) -> HubError {
    HubError::BadAnswer { reference: model.to_string(), why: one_line(why).into_owned() }
}

fn check_hash(expected: Option<&str>, known: &Checksum, candidate: &Candidate) -> Result<(), HubError> {
    match (expected, known) {
        (Some(expected), Checksum::Sha256(found)) if expected != found => Err(HubError::OtherHash {
            file: candidate.file.path.clone(),
            expected: expected.to_owned(),
            found: found.clone(),
        }),
        _ => Ok(()),
    }
}

/// The name of the model: the wanted one, or the file's in lower case.
fn name(wanted: Option<&str>, candidate: &Candidate) -> Result<String, HubError> {
    let stem = Path::new(&candidate.file.path).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let name = wanted.map_or_else(|| stem.to_ascii_lowercase(), str::to_owned);
    match is_model_name(&name) && !is_reserved(&name) {
        true => Ok(name),
        false => Err(HubError::BadName(shorten(&one_line(&name)))),
    }
}
