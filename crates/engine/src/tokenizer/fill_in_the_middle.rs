//! The special tokens of fill-in-the-middle prompts (Bavarian et al. 2022, "Efficient Training of Language Models to Fill
//! in the Middle"): the model generates the text between a prefix and a suffix. Before them, there may be other files of the
//! repository (Hui et al. 2024, "Qwen2.5-Coder Technical Report").

use serde::{Deserialize, Serialize};

/// The texts of a prompt whose completion is the text between `prefix` and `suffix`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InfillTexts {
    /// Other files that help the model, the most important last.
    pub files: Vec<InfillFile>,
    pub prefix: String,
    pub suffix: String,
    /// The token with which the completion begins.
    pub middle: String,
    /// The prompt is cut to this many tokens: first files are left out from the first on, then the beginning of the prefix and
    /// the end of the suffix. `None`: it has all texts.
    pub max_tokens: Option<usize>,
}

/// A file in a prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InfillFile {
    pub name: String,
    pub text: String,
}

/// The tokens before the prefix, before the suffix and before the generated middle. Prompts have this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FimTokens {
    pub prefix: u32,
    pub suffix: u32,
    pub middle: u32,
    pub repository: RepositoryTokens,
}

/// The tokens before the name of a repository and before the name of each of its files, if the model has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepositoryTokens {
    pub repository: Option<u32>,
    pub file: Option<u32>,
}

/// The texts of these tokens in known vocabularies.
const KNOWN: [[&str; 3]; 7] = [
    // Qwen 2.5 Coder and CodeGemma.
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    // StarCoder and Granite.
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    // SantaCoder.
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    // DeepSeek Coder.
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    // Code Llama.
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
    ["<PRE>", "<SUF>", "<MID>"],
    // GLM 4.5.
    ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
];

/// The texts of a repository's tokens in known vocabularies.
const KNOWN_REPOSITORY: [&str; 3] = ["<|repo_name|>", "<repo_name>", "<reponame>"];
const KNOWN_FILE: [&str; 3] = ["<|file_sep|>", "<file_sep>", "<|file_separator|>"];

/// The metadata keys of these tokens in GGUF files; older files have the second key of each.
const GGUF_KEYS: [[&str; 2]; 3] = [
    ["tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"],
    ["tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"],
    ["tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"],
];
const GGUF_REPOSITORY: &str = "tokenizer.ggml.fim_rep_token_id";
const GGUF_FILE: &str = "tokenizer.ggml.fim_sep_token_id";

impl FimTokens {
    /// The tokens that a GGUF file names, or else those with known texts. `by_key`: the token ID in a metadata key. `by_text`:
    /// the ID of the token with a text.
    pub fn of_gguf(by_key: impl Fn(&str) -> Option<u32>, by_text: impl Fn(&str) -> Option<u32>) -> Option<Self> {
        let known = RepositoryTokens::of_vocabulary(&by_text);
        let repository = RepositoryTokens {
            repository: by_key(GGUF_REPOSITORY).or(known.repository),
            file: by_key(GGUF_FILE).or(known.file),
        };
        let named = Self::of(GGUF_KEYS, |keys| keys.into_iter().find_map(&by_key));
        named.or_else(|| Self::of_vocabulary(by_text)).map(|fim| Self { repository, ..fim })
    }

    /// The tokens of a vocabulary with known texts. `id`: the ID of the token with this text.
    pub fn of_vocabulary(id: impl Fn(&str) -> Option<u32>) -> Option<Self> {
        let fim = KNOWN.into_iter().find_map(|texts| Self::of(texts, &id))?;
        Some(Self { repository: RepositoryTokens::of_vocabulary(&id), ..fim })
    }

    fn of<T>([prefix, suffix, middle]: [T; 3], id: impl Fn(T) -> Option<u32>) -> Option<Self> {
        let repository = RepositoryTokens::default();
        Some(Self { prefix: id(prefix)?, suffix: id(suffix)?, middle: id(middle)?, repository })
    }
}

impl RepositoryTokens {
    fn of_vocabulary(id: &impl Fn(&str) -> Option<u32>) -> Self {
        let first = |texts: [&str; 3]| texts.into_iter().find_map(id);
        Self { repository: first(KNOWN_REPOSITORY), file: first(KNOWN_FILE) }
    }
}
