//! Tokenization: the tokens of a text or of a conversation, and the text of tokens.

use std::sync::Arc;

use crate::calls::errors::{self, ModelErrors};
use crate::calls::models::model_name;
use crate::calls::output_format::output_spec::OutputRequest;
use crate::calls::prompt::text_input::check_ids;
use crate::calls::text::generation::TextGeneration;
use crate::content::Message;
use crate::engine::{
    EncoderModel, GenerationDefaults, ModelInfo, ModelKind, PreprocessError, PromptOptions, SpecialTokenOptions,
    TextModel, TokenIds, TokenizeLimits, TokenizerDescription, Tool,
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
    /// `None`: the only chat model.
    pub model: Option<String>,
    pub input: TokenizeInput,
    /// Requests the text of each token, too.
    pub with_pieces: bool,
}

/// The input of a tokenization.
pub enum TokenizeInput {
    Text {
        text: String,
        /// The name of the text's field, for error messages.
        field: &'static str,
        special: SpecialTokenOptions,
    },
    Messages(Conversation),
}

/// A conversation, for the model's chat template.
pub struct Conversation {
    pub messages: Vec<Message>,
    /// A JSON array of tool definitions, as text.
    pub tools: Option<String>,
    pub options: PromptOptions,
}

/// A tokenized text.
pub struct TokenizedText {
    pub id: TokenizationId,
    pub tokens: Vec<u32>,
    /// The bytes of each token, if they are requested. Those of an encoder's token are its spelling in the vocabulary,
    /// such as `##ing`.
    pub pieces: Option<Vec<Vec<u8>>>,
    /// Max tokens of the model.
    pub max_tokens: usize,
}

/// A model that generates text, its tokenizer and its defaults.
pub struct DescribedModel {
    pub id: TokenizationId,
    /// The name in the request, or the ID of the only model that can be meant.
    pub name: String,
    pub tokenizer: TokenizerDescription,
    /// Max tokens of prompt and output together.
    pub max_tokens: usize,
    /// The parameters for requests with this name that do not set them.
    pub defaults: Arc<GenerationDefaults>,
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
        mut call: TokenizeCall,
        recorder: &UsageRecorder,
    ) -> Result<TokenizedText> {
        let name = self.name(access, call.model.take()).await?;
        if let TokenizeInput::Messages(Conversation { messages, .. }) = &mut call.input {
            self.add_system_prompt(&name, messages);
        }
        let input = ResolvedInput::new(call.input)?;
        let (bytes, with_pieces) = (input.bytes(), call.with_pieces);
        let max_tokens = if with_pieces { MAX_DECODED } else { MAX_TOKENS };
        let tokenize = move |model: &LoadedModel, bound: TokenizeLimits| {
            let prompt = model.tokenize(&input, &bound.with_max_tokens(max_tokens))?;
            if !prompt.complete || prompt.ids.len() > max_tokens {
                let field = input.field();
                let text = format!("'{field}' has more than {max_tokens} tokens. Send less in one request.");
                return Err(Error::invalid(field, text));
            }
            let pieces = with_pieces.then(|| model.pieces(&prompt.ids)).transpose()?;
            Ok((prompt.ids, pieces, model.max_tokens()))
        };
        let (tokens, pieces, max_tokens) = self.run(access, name, bytes, recorder, tokenize).await?;
        Ok(TokenizedText { id: self.new_id(), tokens, pieces, max_tokens })
    }

    /// The text that the chat template of a model makes of a conversation. `model` as in [`TokenizeCall`]. Loads the model if
    /// needed.
    pub async fn apply_template(
        &self,
        access: &Access,
        model: Option<String>,
        mut conversation: Conversation,
        recorder: &UsageRecorder,
    ) -> Result<(TokenizationId, String)> {
        let name = self.name(access, model).await?;
        self.add_system_prompt(&name, &mut conversation.messages);
        let input = ResolvedInput::new(TokenizeInput::Messages(conversation))?;
        let bytes = input.bytes();
        let render = move |model: &LoadedModel, bound: TokenizeLimits| model.render(&input, &bound);
        Ok((self.new_id(), self.run(access, name, bytes, recorder, render).await?))
    }

    /// The text of tokens of the model `id`, special tokens included. `id` as in [`TokenizeCall`]. Loads the model if needed.
    pub async fn detokenize(
        &self,
        access: &Access,
        id: Option<String>,
        tokens: Vec<u32>,
        recorder: &UsageRecorder,
    ) -> Result<(TokenizationId, String)> {
        if tokens.len() > MAX_DECODED {
            let text = format!("'tokens' has {} entries; at most {MAX_DECODED} are allowed.", tokens.len());
            return Err(Error::invalid("tokens", text));
        }
        let (name, bytes) = (self.name(access, id).await?, size_of_val(tokens.as_slice()));
        let decode = move |model: &LoadedModel, _: TokenizeLimits| {
            model.check_ids(&tokens)?;
            model.decode(&tokens)
        };
        Ok((self.new_id(), self.run(access, name, bytes, recorder, decode).await?))
    }

    /// Describes a model that generates text. `model` as in [`TokenizeCall`]. Loads the model if needed.
    pub async fn describe(
        &self,
        access: &Access,
        model: Option<String>,
        recorder: &UsageRecorder,
    ) -> Result<DescribedModel> {
        let describe = |model: &LoadedModel, _: TokenizeLimits| match model {
            LoadedModel::Text(text) => Ok((text.tokenizer().clone(), model.max_tokens())),
            LoadedModel::Encoder(encoder) => {
                let text = format!("The model '{}' does not generate text. Name a model that does.", encoder.id());
                Err(Error::invalid("model", text))
            }
        };
        let name = self.name(access, model).await?;
        let (tokenizer, max_tokens) = self.run(access, name.clone(), 0, recorder, describe).await?;
        let defaults = self.generation.engine.models().generation_defaults(&name);
        Ok(DescribedModel { id: self.new_id(), name, tokenizer, max_tokens, defaults })
    }

    /// The name of the model of a request.
    async fn name(&self, access: &Access, given: Option<String>) -> Result<String> {
        model_name::or_only(&self.generation.engine, access, given, is_tokenized_by_default).await
    }

    /// Adds the model's own system prompt to a conversation without one, as chats do.
    fn add_system_prompt(&self, model: &str, messages: &mut Vec<Message>) {
        if !messages.iter().any(|message| message.role == "system")
            && let Some(text) = self.generation.engine.models().system_prompt(model)
        {
            messages.insert(0, Message::new("system", &*text));
        }
    }

    fn new_id(&self) -> TokenizationId {
        TokenizationId::generate(&*self.generation.clock_rng)
    }

    /// Runs `work`, which handles `bytes` of input, with the model, off the async threads.
    async fn run<T: Send + 'static>(
        &self,
        access: &Access,
        mut name: String,
        bytes: usize,
        recorder: &UsageRecorder,
        work: impl FnOnce(&LoadedModel, TokenizeLimits) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.generation.resolve_alias(access, &mut name).await?;
        self.generation.authorize(access, &name).await?;
        let tenant = access.project().to_u128();
        let prepared = self.generation.prepare(access, bytes, move |errors, bound| {
            let model = LoadedModel::load(errors, &name, tenant)?;
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
    Text { text: String, field: &'static str, special: SpecialTokenOptions },
    Messages { messages: Vec<Message>, tools: Arc<[Tool]>, tools_bytes: usize, options: PromptOptions },
}

impl ResolvedInput {
    fn new(input: TokenizeInput) -> Result<Self> {
        let resolved = match input {
            TokenizeInput::Text { text, field, special } => Self::Text { text, field, special },
            TokenizeInput::Messages(Conversation { messages, tools, options }) => {
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
            Self::Text { field, .. } => field,
            Self::Messages { .. } => "messages",
        }
    }
}

/// True for models that a request without a model may mean.
fn is_tokenized_by_default(model: &ModelInfo) -> bool {
    model.kind == ModelKind::Text && !model.is_upstream()
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

    fn tokenize(&self, input: &ResolvedInput, bound: &TokenizeLimits) -> Result<TokenIds> {
        let stopped = |error: PreprocessError| errors::from_stopped(self.id(), &error);
        match (self, input) {
            (Self::Text(model), ResolvedInput::Text { text, special, .. }) => {
                model.text_prompt(text, *special, bound).map_err(stopped)
            }
            (Self::Encoder(model), ResolvedInput::Text { text, special, .. }) => {
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

    /// The text of a conversation's prompt.
    fn render(&self, input: &ResolvedInput, bound: &TokenizeLimits) -> Result<String> {
        match (self, input) {
            (Self::Text(model), ResolvedInput::Messages { messages, tools, options, .. }) => {
                let text = model.prompt_text(messages, tools, options, bound);
                text.map_err(|error| errors::from_prompt_error(model.id(), error))
            }
            _ => {
                let text = format!("The model '{}' has no chat template. Use a chat model.", self.id());
                Err(Error::invalid("model", text))
            }
        }
    }

    /// The bytes of each token.
    fn pieces(&self, ids: &[u32]) -> Result<Vec<Vec<u8>>> {
        match self {
            Self::Text(model) => Ok(ids.iter().map(|id| model.token_bytes(*id).to_vec()).collect()),
            Self::Encoder(model) => {
                let pieces = model.pieces(ids).map_err(|error| errors::from_stopped(model.id(), &error))?;
                Ok(pieces.into_iter().map(String::into_bytes).collect())
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
