//! Decoders that rank or classify: the prompt of a query and a document, and the logits that become the score.

use serde_json::Value;

use super::pair_prompt::{PairPrompt, QWEN3_RERANKER};
use super::sentence_transformers::{RANK, ScoreTokens, SentenceTransformersConfig, pooling_type};
use crate::preprocessor::TemplateSources;
use crate::tokenizer::files::TextFiles;
use outpost_models::decoder::ScoreHeadConfig;
use outpost_models::encoder::head;
use outpost_models::gguf::Header;
use outpost_models::safetensors::ModelFolder;

/// How a decoder ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecoderRanking {
    /// `None`: the tokenizer's own template for pairs.
    pub prompt: Option<PairPrompt>,
    pub score: Score,
}

/// What becomes the score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    Head(ScoreHeadConfig),
    /// The logit of one word, minus that of another one.
    Words([&'static str; 2]),
}

/// A model whose files have the form of a chat model: a part of its name, its prompt, and the positive and the negative answer.
struct KnownRanker {
    name: &'static str,
    prompt: &'static str,
    words: [&'static str; 2],
}

const KNOWN_RANKERS: &[KnownRanker] =
    &[KnownRanker { name: "qwen3-reranker", prompt: QWEN3_RERANKER, words: ["yes", "no"] }];

fn known(name: &str) -> Option<&'static KnownRanker> {
    let name = name.to_lowercase().replace(' ', "-");
    KNOWN_RANKERS.iter().find(|known| name.contains(known.name))
}

impl DecoderRanking {
    /// Reads a folder with a decoder. `None`: it does not rank. `head_config`: the `config.json` if it has a classification head.
    pub fn from_folder(
        folder: &ModelFolder,
        id: &str,
        sentence: &SentenceTransformersConfig,
        head_config: Option<&Value>,
    ) -> Result<Option<Self>, String> {
        let known = known(id);
        let score = match (sentence.score_tokens, head_config, known) {
            (Some(ScoreTokens { positive, negative }), ..) => {
                Score::Head(ScoreHeadConfig::Tokens { positive, negative })
            }
            (None, Some(json), _) => Score::Head(ScoreHeadConfig::Matrix { logits: head::outputs(json) }),
            (None, None, Some(known)) => Score::Words(known.words),
            (None, None, None) => return Ok(None),
        };
        let own = TemplateSources::from_folder(&TextFiles::read(&folder.path)?)?;
        let own = own.and_then(|templates| PairPrompt::from_chat_template(templates.default));
        let prompt = own.or_else(|| known.map(|known| PairPrompt::Jinja(known.prompt.to_owned())));
        if prompt.is_none() && sentence.score_tokens.is_some() {
            return Err("it has a LogitScore module, but its chat template has no roles query and document".to_owned());
        }
        Ok(Some(Self { prompt, score }))
    }

    /// Reads the header of a decoder. `None`: it does not rank.
    pub fn from_gguf(header: &Header, id: &str) -> Result<Option<Self>, String> {
        let metadata = &header.metadata;
        let named = metadata.text("general.name").and_then(known);
        let known = known(id).or(named);
        let rows = header.tensor("cls.output.weight").map(|tensor| tensor.shape.as_slice());
        let score = match (pooling_type(metadata), rows, known) {
            (Some(RANK), Some([rows @ 1..=2, _]), _) => Score::Head(ScoreHeadConfig::Answers { rows: *rows }),
            (Some(RANK), ..) => {
                return Err("decoders that rank are supported only if cls.output.weight has one or two rows".to_owned());
            }
            (_, None, Some(known)) => Score::Words(known.words),
            _ => return Ok(None),
        };
        let own = metadata.text("tokenizer.chat_template.rerank").map(|text| PairPrompt::Plain(text.to_owned()));
        Ok(Some(Self { prompt: known.map(|known| PairPrompt::Jinja(known.prompt.to_owned())).or(own), score }))
    }

    /// Words whose tokens the score needs.
    pub fn words(&self) -> Vec<String> {
        match self.score {
            Score::Head(_) => Vec::new(),
            Score::Words(words) => words.map(str::to_owned).to_vec(),
        }
    }

    /// The head of the network. `tokens` are those of [`Self::words`].
    pub fn head(&self, tokens: &[u32]) -> Result<ScoreHeadConfig, String> {
        match (self.score, tokens) {
            (Score::Head(head), _) => Ok(head),
            (Score::Words(_), &[positive, negative]) => {
                Ok(ScoreHeadConfig::Tokens { positive, negative: Some(negative) })
            }
            (Score::Words(words), _) => Err(format!("its tokenizer does not know the answers {words:?}")),
        }
    }
}

/// True if a model of this name ranks although its files have the form of a chat model.
pub fn is_known_ranker(name: &str) -> bool {
    known(name).is_some()
}
