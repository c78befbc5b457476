//! Embeddings, from a typed request to vectors.

use std::sync::Arc;
use std::time::Duration;

use crate::calls::errors::{self, ModelErrors};
use crate::calls::models::model_name::authorize_name;
use crate::calls::prompt::preparation::PromptPreparation;
use crate::calls::prompt::prompt_choice::PromptChoice;
use crate::calls::prompt::text_input::{TextField, TextInput};
use crate::calls::upstream::embeddings::{self as remote, EmbeddingRequest};
use crate::calls::upstream::models::{Location, UpstreamModels};
use crate::calls::upstream::request_fields::json_call;
use crate::calls::upstream::response_limits;
use crate::calls::upstream::token_estimate;
use crate::calls::upstream::told_usage::{ToldValues, is_possible_input};
use crate::clock_rng::ClockRng;
use crate::display::shorten;
use crate::engine::{EncoderModel, Engine, Matryoshka, ModelKind, TokenizeLimits, Tokenized, truncate_dimensions};
use crate::error::{Code, Error, Result};
use crate::ids::EmbeddingId;
use crate::service::access::Access;
use crate::service::usage::UsageRecorder;
use crate::upstream::{Kind, UpstreamCall, UpstreamModel};

/// Runs embeddings and reranking.
pub struct Embeddings {
    pub(super) engine: Engine,
    pub(super) clock_rng: Arc<dyn ClockRng>,
    pub(super) upstream: UpstreamModels,
    preparing: PromptPreparation,
}

/// A request; `http` has validated each field on its own.
pub struct EmbeddingCall {
    pub model: String,
    pub inputs: Vec<TextInput>,
    /// Where the inputs were in the request, in their order: fields and the numbers of their texts.
    pub fields: Vec<(TextField, usize)>,
    pub dimensions: Option<u32>,
    pub prompt: PromptChoice,
    /// Truncates texts that are too long instead of refusing them.
    pub truncate: bool,
    /// Max tokens of a text, if the model takes more, and the name of the field that sets it. Without effect on an upstream
    /// model.
    pub max_tokens: Option<(u32, &'static str)>,
}

/// The result.
pub struct Embedded {
    pub id: EmbeddingId,
    pub model: String,
    /// In the order of the texts.
    pub vectors: Vec<Vec<f32>>,
    pub tokens: u64,
    /// How long it took until the model was loaded.
    pub loading: Duration,
}

/// A request to an encoder, which this server or another one carries out.
pub(super) trait EncoderCall: Send + Sized + 'static {
    /// The kind of its model.
    const KIND: Kind;
    /// What each text becomes.
    type Value: Send + 'static;

    /// The ID of the model.
    fn model(&self) -> &str;

    /// The number of texts and their bytes.
    fn size(&self) -> (usize, usize);

    /// Checks the request against a model of this server, and tokenises the texts.
    fn tokenise(&self, model: &EncoderModel, bound: &TokenizeLimits) -> Result<Vec<Tokenized>>;

    /// What the output of a model of this server for one text means.
    fn value(&self, output: Vec<f32>) -> Self::Value;

    /// The request to an upstream model, and what reads its response.
    fn upstream(&self, model: &Arc<UpstreamModel>) -> Result<(UpstreamCall, ReadResponse<Self::Value>)>;
}

/// Reads the response to an upstream request. `None`: it makes no sense.
pub(super) type ReadResponse<T> = Box<dyn FnMut(&[u8]) -> Option<ToldValues<T>> + Send>;

/// The result of an [`EncoderCall`].
pub(super) struct Encoded<C: EncoderCall> {
    pub call: C,
    /// In the order of the texts.
    pub values: Vec<C::Value>,
    pub tokens: u64,
    /// How long it took until the model was loaded.
    pub loading: Duration,
}

impl EmbeddingCall {
    /// The name of an input in error messages.
    fn field(&self, index: usize) -> String {
        let mut first = 0;
        for (field, count) in &self.fields {
            if index < first + count {
                return field.of(index - first);
            }
            first += count;
        }
        "input".to_owned()
    }
}

impl Embeddings {
    pub fn new(engine: Engine, clock_rng: Arc<dyn ClockRng>, upstream: UpstreamModels) -> Self {
        Self { engine, clock_rng, upstream, preparing: PromptPreparation::new() }
    }

    /// Resolves the model, tokenises the texts and waits for their vectors. Usage is added to `recorder`. Dropping the
    /// future cancels what is not computed yet.
    pub async fn run(&self, access: &Access, mut call: EmbeddingCall, recorder: &UsageRecorder) -> Result<Embedded> {
        authorize_name(&self.engine, access, &mut call.model)?;
        let Encoded { call, values, tokens, loading } = self.encode(access, call, recorder).await?;
        let id = EmbeddingId::generate(&*self.clock_rng);
        Ok(Embedded { id, model: call.model, vectors: values, tokens, loading })
    }

    /// Carries out a call whose model's name is authorized, wherever the model runs. Usage is added to `recorder`.
    pub(super) async fn encode<C: EncoderCall>(
        &self,
        access: &Access,
        call: C,
        recorder: &UsageRecorder,
    ) -> Result<Encoded<C>> {
        match self.upstream.locate(access, call.model(), &[C::KIND], recorder).await? {
            Location::Local => self.encode_here(access, call, recorder).await,
            Location::Upstream(model) => self.encode_upstream(&model, call, recorder).await,
        }
    }

    async fn encode_here<C: EncoderCall>(
        &self,
        access: &Access,
        call: C,
        recorder: &UsageRecorder,
    ) -> Result<Encoded<C>> {
        let (engine, allowed, clock_rng) = (self.engine.clone(), access.clone(), Arc::clone(&self.clock_rng));
        let (received, (_, bytes)) = (clock_rng.uptime(), call.size());
        let prepare = move |bound: TokenizeLimits| {
            let (id, errors) = (call.model(), ModelErrors { engine: &engine, access: &allowed });
            let model =
                engine.models().load_encoder(id, C::KIND.into()).map_err(|error| errors.load_failed(id, &error))?;
            let loading = clock_rng.uptime().saturating_sub(received);
            let texts = call.tokenise(&model, &bound)?;
            Ok(((call, loading), model, texts))
        };
        let ((call, loading), outputs, tokens) = self.compute(access, recorder, bytes, prepare).await?;
        let values = outputs.into_iter().map(|output| call.value(output)).collect();
        Ok(Encoded { call, values, tokens, loading })
    }

    /// Charges the estimate of the tokens until the target reports their number.
    async fn encode_upstream<C: EncoderCall>(
        &self,
        model: &Arc<UpstreamModel>,
        call: C,
        recorder: &UsageRecorder,
    ) -> Result<Encoded<C>> {
        let ((sent, read), (texts, bytes)) = (call.upstream(model)?, call.size());
        let estimate = token_estimate::prompt_tokens(bytes, 0);
        recorder.charge_prompt(estimate.into()).await?;
        recorder.set_estimated(true);
        let (told, response) = self.upstream.whole(sent, read).await.inspect_err(|_| recorder.waive())?;
        let ToldValues { values, tokens: claimed } = told;
        let told = claimed.filter(|tokens| is_possible_input(*tokens, bytes, texts));
        if told != claimed {
            response.doubt_usage();
        }
        let tokens = told.unwrap_or(estimate).into();
        recorder.set_input(tokens);
        recorder.set_estimated(told.is_none());
        Ok(Encoded { call, values, tokens, loading: Duration::ZERO })
    }

    /// Loads an embedding model without computing anything.
    pub async fn load(&self, access: &Access, id: &str, recorder: &UsageRecorder) -> Result<()> {
        let mut name = id.to_owned();
        authorize_name(&self.engine, access, &mut name)?;
        if let Some(model) = self.upstream.find(&name).await? {
            recorder.set_model(&model.id);
            return Ok(());
        }
        let (engine, allowed) = (self.engine.clone(), access.clone());
        let load = move |_: TokenizeLimits| {
            let errors = ModelErrors { engine: &engine, access: &allowed };
            let model = engine.models().load_encoder(&name, ModelKind::Embedding);
            model.map(|_| name.clone()).map_err(|error| errors.load_failed(&name, &error))
        };
        recorder.set_model(&self.preparing.run(access.project(), 0, load).await?);
        Ok(())
    }

    /// Runs `prepare` on a call with `bytes` of text off the async threads, then computes its texts. Returns the call,
    /// one vector per text and the number of tokens.
    pub(super) async fn compute<T: Send + 'static>(
        &self,
        access: &Access,
        recorder: &UsageRecorder,
        bytes: usize,
        prepare: impl FnOnce(TokenizeLimits) -> Result<(T, Arc<EncoderModel>, Vec<Tokenized>)> + Send + 'static,
    ) -> Result<(T, Vec<Vec<f32>>, u64)> {
        let (call, model, texts) = self.preparing.run(access.project(), bytes, prepare).await?;
        recorder.set_model(model.id());
        let tokens: u64 = texts.iter().map(|text| text.ids.len() as u64).sum();
        recorder.charge_prompt(tokens).await?;
        let tenant = access.project().to_u128();
        // A request that never ran is not charged.
        let receiver = self
            .engine
            .embed(&model, tenant, texts)
            .inspect_err(|_| recorder.waive())
            .map_err(|refused| errors::from_refused(model.id(), refused))?;
        let vectors = receiver.await.map_err(|_| Error::internal("the engine forgot a request"))?;
        Ok((call, vectors.inspect_err(|_| recorder.waive()).map_err(errors::from_failure)?, tokens))
    }
}

impl EncoderCall for EmbeddingCall {
    const KIND: Kind = Kind::Embedding;
    type Value = Vec<f32>;

    fn model(&self) -> &str {
        &self.model
    }

    fn size(&self) -> (usize, usize) {
        (self.inputs.len(), self.inputs.iter().map(TextInput::bytes).sum())
    }

    fn tokenise(&self, model: &EncoderModel, bound: &TokenizeLimits) -> Result<Vec<Tokenized>> {
        check_dimensions(model, self.dimensions)?;
        tokenise(model, self, bound)
    }

    fn value(&self, mut vector: Vec<f32>) -> Vec<f32> {
        if let Some(length) = self.dimensions {
            truncate_dimensions(&mut vector, length as usize);
        }
        vector
    }

    fn upstream(&self, model: &Arc<UpstreamModel>) -> Result<(UpstreamCall, ReadResponse<Vec<f32>>)> {
        let Self { inputs, dimensions, prompt, truncate, .. } = self;
        let request = EmbeddingRequest { inputs, dimensions: *dimensions, prompt, truncate: *truncate };
        let count = inputs.len();
        let max_bytes = response_limits::vectors(model, count, *dimensions);
        let sent = json_call(model, "embeddings", request.fields(model)?, max_bytes);
        Ok((sent, Box::new(move |body| remote::read(body, count))))
    }
}

fn check_dimensions(model: &EncoderModel, requested: Option<u32>) -> Result<()> {
    let (own, Some(requested)) = (model.dimensions(), requested) else { return Ok(()) };
    let supported = match model.matryoshka() {
        _ if requested as usize == own => return Ok(()),
        Matryoshka::No => format!("returns vectors of {own} dimensions and was not trained for shorter ones"),
        Matryoshka::Any if (requested as usize) < own => return Ok(()),
        Matryoshka::Any => format!("supports 1 to {own} dimensions"),
        Matryoshka::Lengths(lengths) if lengths.contains(&(requested as usize)) && (requested as usize) < own => {
            return Ok(());
        }
        Matryoshka::Lengths(lengths) => {
            let lengths: Vec<String> = lengths.iter().chain([&own]).map(usize::to_string).collect();
            format!("supports {} dimensions", lengths.join(", "))
        }
    };
    let message =
        format!("'dimensions' is {requested}, but the model '{}' {supported}. Leave 'dimensions' out.", model.id());
    Err(Error::invalid("dimensions", message))
}

fn tokenise(model: &EncoderModel, call: &EmbeddingCall, bound: &TokenizeLimits) -> Result<Vec<Tokenized>> {
    let texts = call.inputs.iter().filter_map(|input| match input {
        TextInput::Text(text) => Some(text.as_str()),
        TextInput::Tokens(_) => None,
    });
    let texts: Vec<&str> = texts.collect();
    let encoded = match &call.prompt {
        PromptChoice::Purpose(input_type) => model.encode(&texts, *input_type, call.truncate, bound),
        PromptChoice::Named(name) => {
            let prompt = model.prompt(name).ok_or_else(|| unknown_prompt(name, model))?;
            model.encode_with_prompt(&texts, prompt, call.truncate, bound)
        }
    };
    let mut encoded = encoded.map_err(|stopped| errors::from_stopped(model.id(), &stopped))?.into_iter();
    let one = |(index, input): (usize, &TextInput)| {
        let (mut text, complete) = match input {
            // Texts are missing only after a text that is too long, or after the client has disconnected.
            TextInput::Text(_) => encoded.next().ok_or_else(|| Error::internal("a text was not tokenised"))?,
            TextInput::Tokens(ids) => {
                let foreign = ids.iter().find(|id| **id as usize >= model.vocabulary());
                foreign.map_or(Ok(()), |id| Err(foreign_token(&call.field(index), *id, model)))?;
                (model.add_special_tokens(ids), true)
            }
        };
        let (count, limit) = (text.ids.len(), model.limit());
        if count > limit && !call.truncate {
            return Err(too_long(&call.field(index), "", count, complete, model));
        }
        let requested = call.max_tokens.filter(|(requested, _)| count > *requested as usize);
        if let Some((limit, name)) = requested.filter(|_| !call.truncate) {
            let field = call.field(index);
            let text = format!(
                "'{field}' has {count} tokens, but '{name}' is {limit}. Raise it, or send truncate: true, which removes the end of the text."
            );
            return Err(Error::new(Code::ContextLengthExceeded, text).param(field));
        }
        let limit = requested.map_or(limit, |(requested, _)| limit.min(requested as usize));
        model.truncate(&mut text, limit);
        Ok(text)
    };
    call.inputs.iter().enumerate().map(one).collect()
}

fn unknown_prompt(name: &str, model: &EncoderModel) -> Error {
    let names: Vec<&str> = model.prompt_names().collect();
    let known = match names.as_slice() {
        [] => "has no prompts. Leave 'prompt_name' out".to_owned(),
        names => format!("has the prompts {}", names.join(", ")),
    };
    let message = format!("'prompt_name' is '{}', but the model '{}' {known}.", shorten(name), model.id());
    Error::invalid("prompt_name", message)
}

/// `with`: what else was counted, for the message. `exact`: false if counting stopped early.
pub(super) fn too_long(field: &str, with: &str, count: usize, exact: bool, model: &EncoderModel) -> Error {
    let at_least = if exact { "" } else { "at least " };
    let message = format!(
        "'{field}' has {at_least}{count} tokens{with}, the model '{}' takes {}. Split the text, or set 'truncate', which removes its end.",
        model.id(),
        model.limit()
    );
    Error::new(Code::ContextLengthExceeded, message).param(field)
}

fn foreign_token(field: &str, id: u32, model: &EncoderModel) -> Error {
    let message = format!(
        "'{field}' has the token {id}, but the model '{}' has tokens 0 to {}. Send text rather than another model's tokens.",
        model.id(),
        model.vocabulary() - 1
    );
    Error::invalid(field, message)
}
