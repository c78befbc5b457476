//! Pre-tokenizers: how text is split into words before merging, by the name in `tokenizer.ggml.pre`.
//!
//! The patterns are those of llama.cpp's `llama-vocab.cpp` for the same names, so that token counts are equal. The rules
//! of a pre-tokenizer are applied in order, each to the pieces of the previous one.

use tokenizers::SplitDelimiterBehavior::Isolated;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};

/// A pre-tokenizer.
pub struct PreTokenizer {
    names: &'static [&'static str],
    rules: &'static [&'static str],
    /// Uses words that are tokens without merging.
    pub ignore_merges: bool,
    /// Default for files that do not say whether prompts begin with the BOS token.
    pub add_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
const LLAMA3: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SEED_CODER: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK_V3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
/// Tekken and o200k are Mistral's and OpenAI's own patterns; llama.cpp has approximations.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const PRE_TOKENIZERS: &[PreTokenizer] = &[
    PreTokenizer {
        names: &["gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "exaone4"],
        rules: &[GPT2],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"],
        rules: &[r"\p{N}", GPT2],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["default"],
        rules: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan"],
        rules: &[QWEN2],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer { names: &["seed-coder"], rules: &[SEED_CODER], ignore_merges: false, add_bos: false },
    PreTokenizer {
        names: &["deepseek-v3", "hunyuan-dense"],
        rules: &[r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK_V3],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["tiny_aya"],
        rules: &[r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer { names: &["qwen35"], rules: &[QWEN35], ignore_merges: false, add_bos: false },
    PreTokenizer { names: &["tekken"], rules: &[TEKKEN], ignore_merges: true, add_bos: true },
    PreTokenizer { names: &["gpt-4o", "llama4"], rules: &[GPT4O], ignore_merges: false, add_bos: false },
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "smaug-bpe", "lfm2", "pixtral"],
        rules: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
    },
    PreTokenizer { names: &["dbrx", "glm4", "chatglm-bpe"], rules: &[LLAMA3], ignore_merges: false, add_bos: false },
];

/// Splits texts into runs of line breaks and what is between them, as llama.cpp does for Gemma 4.
pub fn lines() -> Result<Split, tokenizers::Error> {
    Split::new(SplitPattern::Regex(r"[^\n]+|[\n]+".to_owned()), Isolated, false)
}

/// The pre-tokenizer of this name. The error lists the supported names.
pub fn find(name: &str) -> Result<&'static PreTokenizer, String> {
    PRE_TOKENIZERS.iter().find(|pre_tokenizer| pre_tokenizer.names.contains(&name)).ok_or_else(|| {
        let known: Vec<_> = PRE_TOKENIZERS.iter().flat_map(|pre_tokenizer| pre_tokenizer.names).copied().collect();
        format!("the pre-tokenizer '{name}' is not supported; supported: {}", known.join(", "))
    })
}

impl PreTokenizer {
    /// The split rules, then the mapping of bytes to the byte-level alphabet.
    pub fn build(&self) -> Result<Sequence, tokenizers::Error> {
        let rules = self.rules.iter().map(|rule| {
            let pattern = SplitPattern::Regex((*rule).to_owned());
            Split::new(pattern, Isolated, false).map(PreTokenizerWrapper::from)
        });
        let mut steps = rules.collect::<Result<Vec<_>, _>>()?;
        steps.push(ByteLevel::new(false, false, false).into());
        Ok(Sequence::new(steps))
    }
}
