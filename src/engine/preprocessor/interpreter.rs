//! The tokenizers and templates of one model, built from its files. What happens here is decided by whoever made the
//! files: it may take any time and memory, or end the process.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::chat::ChatPreprocessor;
use super::{Request, TextSpec, wire};
use crate::clock_rng::ClockRng;
use crate::engine::checkpoint::is_gguf;
use crate::engine::embedding::TextTokens;
use crate::engine::image::PromptTokenizer;
use crate::engine::tokenizer::TokenBound;
use crate::engine::tokenizer::files::TextFiles;
use crate::models::gguf::{GgufFile, LONGEST_HEADER, Metadata};

/// What is interpreted, and where its files are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Spec {
    /// `rows` is the number of embeddings: no token may lie beyond.
    Chat {
        path: PathBuf,
        rows: usize,
    },
    Encoder {
        path: PathBuf,
        lower_case: bool,
    },
    /// The tokenizers of a pipeline.
    Image {
        texts: Vec<TextSpec>,
    },
}

/// Files in memory. Only a GGUF file's header is parsed.
pub(super) enum Source {
    Gguf(Metadata),
    Folder(TextFiles),
}

impl Source {
    /// `path`: the file that stands for a model.
    fn read(path: &Path) -> Result<Self, String> {
        if is_gguf(path) {
            let file = GgufFile::open(path).map_err(|error| error.to_string())?;
            return Ok(Self::Gguf(file.header.metadata));
        }
        TextFiles::read(path.parent().ok_or("the model is in no folder")?).map(Self::Folder)
    }
}

impl Spec {
    /// Reads the files; the last time that any is opened.
    pub fn read(&self) -> Result<Vec<Source>, String> {
        match self {
            Self::Chat { path, .. } | Self::Encoder { path, .. } => Source::read(path).map(|source| vec![source]),
            Self::Image { texts } => {
                texts.iter().map(|text| TextFiles::read(&text.folder).map(Source::Folder)).collect()
            }
        }
    }

    /// Where the files are.
    pub fn files(&self) -> String {
        match self {
            Self::Chat { path, .. } | Self::Encoder { path, .. } => path.display().to_string(),
            Self::Image { texts } => texts.first().map_or_else(String::new, |text| text.folder.display().to_string()),
        }
    }

    /// Bytes of the files at most; a GGUF file's header is a part of it.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Chat { path, .. } | Self::Encoder { path, .. } if is_gguf(path) => {
                std::fs::metadata(path).map_or(0, |file| file.len().min(LONGEST_HEADER))
            }
            Self::Chat { path, .. } | Self::Encoder { path, .. } => path.parent().map_or(0, TextFiles::size_on_disk),
            Self::Image { texts } => texts.iter().map(|text| TextFiles::size_on_disk(&text.folder)).sum(),
        }
    }
}

pub(super) enum Interpreter {
    Chat(Box<ChatPreprocessor>),
    Encoder(Box<TextTokens>),
    Image(Vec<PromptTokenizer>),
}

impl Interpreter {
    /// Builds what `spec` says from what [`Spec::read`] gave; and encoded, what the server is told of it.
    pub fn new(spec: &Spec, sources: &[Source], clock: &Arc<dyn ClockRng>) -> Result<(Self, Vec<u8>), String> {
        let only = || sources.first().ok_or("there are no files");
        match spec {
            Spec::Chat { rows, .. } => {
                let (chat, facts) = ChatPreprocessor::new(only()?, *rows, clock)?;
                Ok((Self::Chat(Box::new(chat)), wire::encode(&facts)?))
            }
            Spec::Encoder { lower_case, .. } => {
                let tokens = match only()? {
                    Source::Gguf(metadata) => TextTokens::of_gguf(metadata)?,
                    Source::Folder(files) => TextTokens::of_folder(files, *lower_case)?,
                };
                let facts = wire::encode(&tokens.facts())?;
                Ok((Self::Encoder(Box::new(tokens)), facts))
            }
            Spec::Image { texts } => {
                let files = sources.iter().filter_map(|source| match source {
                    Source::Folder(files) => Some(files),
                    Source::Gguf(_) => None,
                });
                let all = files.zip(texts).map(|(files, text)| PromptTokenizer::new(files, text));
                let all = all.collect::<Result<Vec<_>, _>>()?;
                let facts = wire::encode(&all.iter().map(PromptTokenizer::len).collect::<Vec<_>>())?;
                Ok((Self::Image(all), facts))
            }
        }
    }

    /// Answers an encoded [`Request`]; the answer is encoded, too. Its type belongs to the request.
    pub fn answer(&self, request: Vec<u8>, bound: &TokenBound) -> Result<Vec<u8>, String> {
        let (most, decoded): (Option<usize>, Request<'_>) = wire::decode(&request)?;
        // Large requests are in memory once.
        drop(request);
        let bound = &most.map_or_else(|| bound.clone(), |most| bound.clone().with_most(most));
        match (decoded, self) {
            (Request::Prompt { messages, tools }, Self::Chat(chat)) => {
                wire::encode(&chat.prompt(&messages, &tools, bound))
            }
            (Request::Plain { text }, Self::Chat(chat)) => wire::encode(&chat.encode(&text)),
            (Request::Texts { texts, whole }, Self::Encoder(tokens)) => {
                wire::encode(&tokens.encode_all(&texts, whole, bound))
            }
            (Request::Pairs { query, documents, limit }, Self::Encoder(tokens)) => {
                wire::encode(&tokens.encode_pairs(&query, &documents, limit, bound))
            }
            (Request::Image { texts }, Self::Image(all)) => {
                let one = |tokens: &PromptTokenizer| texts.iter().map(|text| tokens.encode(text)).collect();
                wire::encode(&all.iter().map(one).collect::<Result<Vec<Vec<Vec<u32>>>, String>>())
            }
            _ => Err("the model does not answer such requests".to_owned()),
        }
    }
}
