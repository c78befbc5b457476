//! The special tokens of fill-in-the-middle prompts (Bavarian et al. 2022, "Efficient Training of Language Models to Fill
//! in the Middle"): the model generates the text between a prefix and a suffix.

/// The tokens before the prefix, before the suffix and before the generated middle. Prompts have this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FimTokens {
    pub prefix: u32,
    pub suffix: u32,
    pub middle: u32,
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

/// The metadata keys of these tokens in GGUF files; older files have the second key of each.
const GGUF_KEYS: [[&str; 2]; 3] = [
    ["tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"],
    ["tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"],
    ["tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"],
];

impl FimTokens {
    /// The tokens that a GGUF file names. `id`: the token ID in a metadata key.
    pub fn from_metadata(id: impl Fn(&str) -> Option<u32>) -> Option<Self> {
        Self::of(GGUF_KEYS, |keys| keys.into_iter().find_map(&id))
    }

    /// The tokens of a vocabulary with known texts. `id`: the ID of the token with this text.
    pub fn from_vocabulary(id: impl Fn(&str) -> Option<u32>) -> Option<Self> {
        KNOWN.into_iter().find_map(|texts| Self::of(texts, &id))
    }

    fn of<T>([prefix, suffix, middle]: [T; 3], id: impl Fn(T) -> Option<u32>) -> Option<Self> {
        Some(Self { prefix: id(prefix)?, suffix: id(suffix)?, middle: id(middle)? })
    }
}
