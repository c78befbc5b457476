//! Vectors of texts, from a typed request to numbers.

use std::sync::Arc;

use super::chat::{fail, refuse};
use super::models::{refuse_load, refuse_stopped};
use super::preparing::Preparing;
use crate::clock_rng::ClockRng;
use crate::engine::{EncoderModel, Engine, InputType, Kind, Matryoshka, TokenBound, Tokenized, truncate_dimensions};
use crate::error::{Code, Error, Result};
use crate::ids::EmbeddingId;
use crate::service::access::Access;
use crate::service::usage::Receipt;

/// Runs embeddings, and what else encoders are for.
pub struct Embeddings {
    pub(super) engine: Engine,
    pub(super) clock_rng: Arc<dyn ClockRng>,
    preparing: Preparing,
}

/// What a caller asks for; `http` has checked the form of each field.
pub struct EmbeddingCall {
    pub model: String,
    pub inputs: Vec<Input>,
    /// Whether `input` was one text and no list, for messages.
    pub single: bool,
    pub dimensions: Option<u32>,
    pub input_type: InputType,
    /// Whether texts that are too long are cut, rather than refused.
    pub truncate: bool,
}

/// A text.
pub enum Input {
    Text(String),
    /// As tokens of the model.
    Tokens(Vec<u32>),
}

impl Input {
    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Tokens(ids) => size_of_val(ids.as_slice()),
        }
    }
}

/// What became of it.
pub struct Embedded {
    pub id: EmbeddingId,
    pub model: String,
    /// In the order of the texts.
    pub vectors: Vec<Vec<f32>>,
    pub tokens: u64,
}

impl Embeddings {
    pub fn new(engine: Engine, clock_rng: Arc<dyn ClockRng>) -> Self {
        Self { engine, clock_rng, preparing: Preparing::new() }
    }

    /// Resolves the model, tokenises the texts and waits for their vectors. What is used goes on `bill`. Dropping
    /// the future cancels what is not computed yet.
    pub async fn run(&self, access: &Access, call: EmbeddingCall, bill: &Receipt) -> Result<Embedded> {
        access.require_model(&call.model)?;
        let engine = self.engine.clone();
        let bytes = call.inputs.iter().map(Input::bytes).sum();
        let prepare = move |bound: TokenBound| {
            let id = call.model.as_str();
            let model = engine.models().load_encoder(id, Kind::Embedding).map_err(|error| refuse_load(id, &error))?;
            check_dimensions(&model, call.dimensions)?;
            let texts = tokenise(&model, &call, &bound)?;
            Ok((call, model, texts))
        };
        let (call, mut vectors, tokens) = self.compute(access, bill, bytes, prepare).await?;
        if let Some(length) = call.dimensions {
            vectors.iter_mut().for_each(|vector| truncate_dimensions(vector, length as usize));
        }
        Ok(Embedded { id: EmbeddingId::generate(&*self.clock_rng), model: call.model, vectors, tokens })
    }

    /// Has texts computed that `prepare` makes of a call with `bytes` of text, off the async threads: the call again, a
    /// vector for each text, and the texts' tokens.
    pub(super) async fn compute<T: Send + 'static>(
        &self,
        access: &Access,
        bill: &Receipt,
        bytes: usize,
        prepare: impl FnOnce(TokenBound) -> Result<(T, Arc<EncoderModel>, Vec<Tokenized>)> + Send + 'static,
    ) -> Result<(T, Vec<Vec<f32>>, u64)> {
        let (call, model, texts) = self.preparing.run(access.project(), bytes, prepare).await?;
        bill.model(model.id());
        let tokens: u64 = texts.iter().map(|text| text.ids.len() as u64).sum();
        bill.prompt(tokens)?;
        let tenant = u128::from_be_bytes(access.project().to_bytes());
        // What never ran costs nothing.
        let receiver = self
            .engine
            .embed(&model, tenant, texts)
            .inspect_err(|_| bill.waive())
            .map_err(|refused| refuse(model.id(), refused))?;
        let vectors = receiver.await.map_err(|_| Error::internal("the engine forgot a request"))?;
        Ok((call, vectors.inspect_err(|_| bill.waive()).map_err(fail)?, tokens))
    }
}

fn check_dimensions(model: &EncoderModel, asked: Option<u32>) -> Result<()> {
    let (own, Some(asked)) = (model.dimensions(), asked) else { return Ok(()) };
    let can = match model.matryoshka() {
        _ if asked as usize == own => return Ok(()),
        Matryoshka::No => format!("makes vectors of {own} numbers and was not trained for shorter ones"),
        Matryoshka::Any if (asked as usize) < own => return Ok(()),
        Matryoshka::Any => format!("makes vectors of 1 to {own} numbers"),
        Matryoshka::These(lengths) if lengths.contains(&(asked as usize)) && (asked as usize) < own => return Ok(()),
        Matryoshka::These(lengths) => {
            let all: Vec<String> = lengths.iter().chain([&own]).map(usize::to_string).collect();
            format!("makes vectors of {} numbers", all.join(", "))
        }
    };
    let message = format!("'dimensions' is {asked}, but the model '{}' {can}. Leave 'dimensions' out.", model.id());
    Err(Error::invalid("dimensions", message))
}

fn tokenise(model: &EncoderModel, call: &EmbeddingCall, bound: &TokenBound) -> Result<Vec<Tokenized>> {
    let texts = call.inputs.iter().filter_map(|input| match input {
        Input::Text(text) => Some(text.as_str()),
        Input::Tokens(_) => None,
    });
    let encoded = model.encode(&texts.collect::<Vec<_>>(), call.input_type, call.truncate, bound);
    let mut encoded = encoded.map_err(|stopped| refuse_stopped(model.id(), &stopped))?.into_iter();
    let field = |place: usize| if call.single { "input".to_owned() } else { format!("input[{place}]") };
    let one = |(place, input): (usize, &Input)| {
        let (mut text, complete) = match input {
            // One that is missing comes after one that is too long, or after the client has left.
            Input::Text(_) => encoded.next().ok_or_else(|| Error::internal("a text was not tokenised"))?,
            Input::Tokens(ids) => {
                let foreign = ids.iter().find(|id| **id as usize >= model.vocabulary());
                foreign.map_or(Ok(()), |id| Err(foreign_token(&field(place), *id, model)))?;
                (model.wrap(ids), true)
            }
        };
        let (count, limit) = (text.ids.len(), model.limit());
        if count > limit && !call.truncate {
            return Err(too_long(&field(place), "", count, complete, model));
        }
        model.cut(&mut text);
        Ok(text)
    };
    call.inputs.iter().enumerate().map(one).collect()
}

/// `with`: what is counted, too. `exact`: whether `count` is all tokens, or those up to where counting stopped.
pub(super) fn too_long(field: &str, with: &str, count: usize, exact: bool, model: &EncoderModel) -> Error {
    let at_least = if exact { "" } else { "at least " };
    let message = format!(
        "'{field}' has {at_least}{count} tokens{with}, the model '{}' takes {}. Split the text, or send truncate: true, which leaves its end out.",
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
