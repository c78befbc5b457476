//! Tokenization: the tokens of a text or of a conversation, and the text of tokens.

use std::sync::Arc;

use super::errors::{self, ModelErrors};
use super::generation::TextGeneration;
use super::output_spec::OutputRequest;
use super::text_input::check_ids;
use crate::engine::{
    EncoderModel, Message, ModelKind, PreprocessError, Prompt, PromptOptions, SpecialTokenOptions, TextModel,
    TokenizeLimits, Tool,
};
use crate::error::{Error, Result};
use crate::ids::TokenizationId;
use crate::service::access::Access;
use crate::service::usage::UsageRecorder;

/// Max bytes of a text, or of the messages and tools of a conversation.
const MAX_BYTES: usize = 1 << 20;

/// Max tokens of a result.
const MAX_TOKENS: usize = 1 << 20;

/// Max tokens to decode; some tokens have hundreds of bytes.
const MAX_DECODED: usize = 1 << 18;

/// Tokenizes and detokenizes with the tokenizers of chat and embedding models.
pub struct Tokenization {
    generation: TextGeneration,
}

/// A request; `http` has validated each field on its own.
pub struct TokenizeCall {
    pub model: String,
    pub input: TokenizeInput,
}

/// What is tokenized.
pub enum TokenizeInput {
    Text {
        text: String,
        special: SpecialTokenOptions,
    },
    /// A conversation, with the model's chat template.
    Messages {
        messages: Vec<Message>,
        /// A JSON array of tool definitions, as text.
        tools: Option<String>,
        options: PromptOptions,
    },
}

/// A tokenized text.
pub struct TokenizedText {
    pub id: TokenizationId,
    pub tokens: Vec<u32>,
    /// Max tokens of the model.
    pub max_tokens: usize,
}

/// A model with a tokenizer that clients may use.
enum LoadedModel {
    Text(Arc<TextModel>),
    Encoder(Arc<EncoderModel>),
}

impl Tokenization {
    /// `generation`: shares the limits of prompt preparation.
    pub fn new(generation: TextGeneration) -> Self {
        Self { generation }
    }

    /// The tokens of a text or a conversation. Loads the model if needed.
    pub async fn tokenize(
        &self,
        access: &Access,
        call: TokenizeCall,
        recorder: &UsageRecorder,
    ) -> Result<TokenizedText> {
        let input = ResolvedInput::new(call.input)?;
        let bytes = input.bytes();
        let tokenize = move |model: &LoadedModel, bound: TokenizeLimits| {
            let prompt = model.tokenize(&input, &bound.with_max_tokens(MAX_TOKENS))?;
            if !prompt.complete {
                let field = input.field();
                let text = format!("'{field}' has more than {MAX_TOKENS} tokens. Send less in one request.");
                return Err(Error::invalid(field, text));
            }
            Ok((prompt.ids, model.max_tokens()))
        };
        let (tokens, max_tokens) = self.run(access, call.model, bytes, recorder, tokenize).await?;
        Ok(TokenizedText { id: self.new_id(), tokens, max_tokens })
    }

    /// The text of tokens of the model `id`, special tokens included. Loads the model if needed.
    pub async fn detokenize(
        &self,
        access: &Access,
        id: String,
        tokens: Vec<u32>,
        recorder: &UsageRecorder,
    ) -> Result<(TokenizationId, String)> {
        if tokens.len() > MAX_DECODED {
            let text = format!("'tokens' has {} entries; at most {MAX_DECODED} are allowed.", tokens.len());
            return Err(Error::invalid("tokens", text));
        }
        let bytes = size_of_val(tokens.as_slice());
        let decode = move |model: &LoadedModel, _: TokenizeLimits| {
            model.check_ids(&tokens)?;
            model.decode(&tokens)
        };
        Ok((self.new_id(), self.run(access, id, bytes, recorder, decode).await?))
    }

    fn new_id(&self) -> TokenizationId {
        TokenizationId::generate(&*self.generation.clock_rng)
    }

    /// Runs `work`, which handles `bytes` of input, with the model, off the async threads.
    async fn run<T: Send + 'static>(
        &self,
        access: &Access,
        mut id: String,
        bytes: usize,
        recorder: &UsageRecorder,
        work: impl FnOnce(&LoadedModel, TokenizeLimits) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.generation.resolve_alias(access, &mut id).await?;
        self.generation.authorize(access, &id).await?;
        let tenant = access.project().to_u128();
        let prepared = self.generation.prepare(access, bytes, move |errors, bound| {
            let model = LoadedModel::load(errors, &id, tenant)?;
            let made = work(&model, bound)?;
            Ok((model.id().to_owned(), made))
        });
        let (model, made) = prepared.await?;
        recorder.set_model(&model);
        Ok(made)
    }
}

/// An input whose size is checked, with parsed tools.
enum ResolvedInput {
    Text { text: String, special: SpecialTokenOptions },
    Messages { messages: Vec<Message>, tools: Arc<[Tool]>, tools_bytes: usize, options: PromptOptions },
}

impl ResolvedInput {
    fn new(input: TokenizeInput) -> Result<Self> {
        let resolved = match input {
            TokenizeInput::Text { text, special } => Self::Text { text, special },
            TokenizeInput::Messages { messages, tools, options } => {
                let tools_bytes = tools.as_ref().map_or(0, String::len);
                let output = OutputRequest { tools, ..OutputRequest::default() };
                let tools = output.resolve(None, false)?.spec.tools;
                Self::Messages { messages, tools, tools_bytes, options }
            }
        };
        let (bytes, field) = (resolved.bytes(), resolved.field());
        if bytes > MAX_BYTES {
            let text =
                format!("'{field}' has {bytes} bytes; at most {MAX_BYTES} are allowed. Send less in one request.");
            return Err(Error::invalid(field, text));
        }
        Ok(resolved)
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Text { text, .. } => text.len(),
            Self::Messages { messages, tools_bytes, .. } => {
                messages.iter().map(Message::bytes).sum::<usize>() + tools_bytes
            }
        }
    }

    fn field(&self) -> &'static str {
        match self {
            Self::Text { .. } => "prompt",
            Self::Messages { .. } => "messages",
        }
    }
}

impl LoadedModel {
    /// Blocks while the model is loaded.
    fn load(errors: &ModelErrors<'_>, id: &str, tenant: u128) -> Result<Self> {
        let models = errors.engine.models();
        let loaded = match models.find(id).map(|model| model.kind) {
            Some(kind @ (ModelKind::Embedding | ModelKind::Reranker | ModelKind::Classifier)) => {
                models.load_encoder(id, kind).map(Self::Encoder)
            }
            _ => models.load_for(id, tenant).map(Self::Text),
        };
        loaded.map_err(|error| errors.load_failed(id, &error))
    }

    fn id(&self) -> &str {
        match self {
            Self::Text(model) => model.id(),
            Self::Encoder(model) => model.id(),
        }
    }

    fn max_tokens(&self) -> usize {
        match self {
            Self::Text(model) => model.context_window() as usize,
            Self::Encoder(model) => model.limit(),
        }
    }

    fn tokenize(&self, input: &ResolvedInput, bound: &TokenizeLimits) -> Result<Prompt> {
        let stopped = |error: PreprocessError| errors::from_stopped(self.id(), &error);
        match (self, input) {
            (Self::Text(model), ResolvedInput::Text { text, special }) => {
                model.text_prompt(text, *special, bound).map_err(stopped)
            }
            (Self::Encoder(model), ResolvedInput::Text { text, special }) => {
                model.tokenize(text, special.add, bound).map_err(stopped)
            }
            (Self::Text(model), ResolvedInput::Messages { messages, tools, options, .. }) => {
                let prompt = model.prompt_within(messages, tools, options, bound);
                prompt.map_err(|error| errors::from_prompt_error(model.id(), error))
            }
            (Self::Encoder(model), ResolvedInput::Messages { .. }) => {
                let id = model.id();
                let text = format!("The model '{id}' has no chat template. Send 'prompt' instead of 'messages'.");
                Err(Error::invalid("messages", text))
            }
        }
    }

    fn check_ids(&self, ids: &[u32]) -> Result<()> {
        match self {
            Self::Text(model) => check_ids(model.id(), model.vocabulary(), ids, "tokens"),
            Self::Encoder(model) => check_ids(model.id(), model.vocabulary(), ids, "tokens"),
        }
    }

    fn decode(&self, ids: &[u32]) -> Result<String> {
        match self {
            Self::Text(model) => Ok(model.decode(ids)),
            Self::Encoder(model) => model.decode(ids).map_err(|error| errors::from_stopped(model.id(), &error)),
        }
    }
}
