//! Moderation: which categories of harmful content texts belong to, according to a classifier.
//!
//! OpenAI's names of moderation models need an alias, like `gpt-4o`. Only a request without a model gets a default,
//! because OpenAI's clients may leave the field out.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::calls::embeddings::Embeddings;
use crate::calls::errors::{ModelErrors, from_stopped};
use crate::calls::models::model_name::{authorize_name, resolve_alias};
use crate::display::shorten;
use crate::engine::{
    CATEGORIES, DEFAULT_THRESHOLD, EncoderModel, Engine, LabelMeaning, Labels, LoadError, ModelInfo, ModelKind,
    TokenizeLimits, Tokenized, label_meanings,
};
use crate::error::{Code, Error, Result};
use crate::ids::ModerationId;
use crate::service::access::Access;
use crate::service::usage::UsageRecorder;

/// Max windows of the model's length in a request.
const MAX_WINDOWS: usize = 2048;
/// OpenAI's name for the default, which an alias may set.
const DEFAULT_ALIAS: &str = "omni-moderation-latest";
const WHAT_TO_INSTALL: &str = "Put a text classifier in Hugging Face's format into the models folder, or install it with 'outpost models pull hf:USER/REPO': a BertForSequenceClassification, RobertaForSequenceClassification, XLMRobertaForSequenceClassification, DistilBertForSequenceClassification or ModernBertForSequenceClassification with model.safetensors, whose labels (id2label in config.json) are classes of harmful content, such as toxic or hate.";

/// A request; `http` has validated each field on its own.
pub struct ModerationCall {
    /// `None`: the alias [`DEFAULT_ALIAS`], or else the first model that moderates.
    pub model: Option<String>,
    pub inputs: Vec<ModerationInput>,
}

/// Texts that are judged together.
pub struct ModerationInput {
    /// With the name of its field, for error messages.
    pub texts: Vec<(String, String)>,
}

/// The result.
pub struct Moderated {
    pub id: ModerationId,
    pub model: String,
    /// OpenAI's categories and the model's labels.
    pub categories: Categories,
    /// In the order of the inputs.
    pub results: Vec<ModerationResult>,
    pub tokens: u64,
}

/// The result for an input: entries in the order of [`Categories::names`].
pub struct ModerationResult {
    pub flagged: bool,
    pub applies: Vec<bool>,
    pub scores: Vec<f32>,
}

/// The categories of a response: those of OpenAI, then the labels of the model that are named differently.
pub struct Categories {
    pub names: Vec<String>,
    /// Whether the model says anything about a category.
    pub are_scored: Vec<bool>,
    labels: Vec<LabelEntries>,
    are_independent: bool,
    threshold: f32,
}

/// The entries among the categories that a label's score counts for.
struct LabelEntries {
    is_safe: bool,
    own: usize,
    category: Option<usize>,
}

impl Categories {
    fn new(labels: &Labels, meanings: &[LabelMeaning], threshold: f32) -> Self {
        let mut names: Vec<String> = CATEGORIES.map(str::to_owned).to_vec();
        let mut indices: BTreeMap<String, usize> =
            names.iter().cloned().enumerate().map(|(index, name)| (name, index)).collect();
        let mut index_of = |name: &str| {
            *indices.entry(name.to_owned()).or_insert_with(|| {
                names.push(name.to_owned());
                names.len() - 1
            })
        };
        let mut entries = |(label, meaning): (&String, &LabelMeaning)| LabelEntries {
            is_safe: *meaning == LabelMeaning::Safe,
            own: index_of(label),
            category: if let LabelMeaning::Category(name) = meaning { Some(index_of(name)) } else { None },
        };
        let labels_of: Vec<LabelEntries> = labels.names.iter().zip(meanings).map(&mut entries).collect();
        let mut are_scored = vec![false; names.len()];
        for LabelEntries { own, category, .. } in &labels_of {
            for index in [Some(*own), *category].into_iter().flatten() {
                are_scored[index] = true;
            }
        }
        Self { names, are_scored, labels: labels_of, are_independent: labels.are_independent, threshold }
    }

    /// The result for an input, given the scores of the labels in each of its windows.
    fn result(&self, windows: impl Iterator<Item = Vec<f32>>) -> ModerationResult {
        let (mut applies, mut scores) = (vec![false; self.names.len()], vec![0_f32; self.names.len()]);
        for window in windows {
            let labels = || self.labels.iter().zip(window.iter().copied());
            let harmful = || labels().filter(|(label, _)| !label.is_safe);
            // If the scores of a single-label model add up to one, several harmful labels share what a text has of harm.
            let total: f32 = harmful().map(|(_, score)| score).sum();
            let is_shared = !self.are_independent && total >= self.threshold;
            let highest = harmful().map(|(_, score)| score).fold(0., f32::max);
            for (label, score) in labels() {
                let found = !label.is_safe && (score >= self.threshold || is_shared && score >= highest);
                for index in [Some(label.own), label.category].into_iter().flatten() {
                    scores[index] = scores[index].max(score);
                    applies[index] |= found;
                }
            }
        }
        ModerationResult { flagged: applies.contains(&true), applies, scores }
    }
}

impl Embeddings {
    /// Classifies texts with a model that moderates. A text beyond the model's limit is classified in windows; the highest
    /// scores count. Usage is added to `recorder`. Dropping the future cancels what is not computed yet.
    pub async fn moderate(
        &self,
        access: &Access,
        mut call: ModerationCall,
        recorder: &UsageRecorder,
    ) -> Result<Moderated> {
        if let Some(name) = &mut call.model {
            authorize_name(&self.engine, access, name)?;
        }
        let (engine, allowed) = (self.engine.clone(), access.clone());
        let texts = call.inputs.iter().flat_map(|input| &input.texts);
        let bytes = texts.map(|(_, text)| text.len()).sum();
        let prepare = move |bound: TokenizeLimits| {
            let model = load(&engine, &allowed, call.model.as_deref())?;
            let settings = engine.models().model_settings();
            let settings = settings.moderation(model.id());
            let labels = model.labels().ok_or_else(|| Error::internal("a classifier has no labels"))?;
            let meanings = label_meanings(&labels.names, settings).ok_or_else(|| no_moderation(&model, labels))?;
            let threshold = settings.and_then(|settings| settings.threshold).unwrap_or(DEFAULT_THRESHOLD);
            let categories = Categories::new(labels, &meanings, threshold);
            let (windows, counts) = windows(&model, &call.inputs, &bound)?;
            Ok(((Arc::clone(&model), categories, counts), model, windows))
        };
        let ((model, categories, counts), logits, tokens) = self.compute(access, recorder, bytes, prepare).await?;
        let labels = model.labels().ok_or_else(|| Error::internal("a classifier has no labels"))?;
        let mut scores = logits.iter().map(|logits| labels.scores(logits));
        let results = counts.into_iter().map(|count| categories.result(scores.by_ref().take(count))).collect();
        let id = ModerationId::generate(&*self.clock_rng);
        Ok(Moderated { id, model: model.id().to_owned(), categories, results, tokens })
    }
}

/// Loads the model that a request names, or the default. Blocks.
fn load(engine: &Engine, access: &Access, named: Option<&str>) -> Result<Arc<EncoderModel>> {
    let errors = ModelErrors { engine, access };
    let id = match named {
        Some(name) => name.to_owned(),
        None => default_model(engine, access)?,
    };
    engine.models().load_encoder(&id, ModelKind::Classifier).map_err(|error| match error {
        LoadError::NotFound if installed(engine, access).next().is_none() => {
            let text =
                format!("No model '{}' is installed, and none that moderates texts. {WHAT_TO_INSTALL}", shorten(&id));
            Error::new(Code::ModelNotFound, text).param("model")
        }
        error => errors.load_failed(&id, &error),
    })
}

/// The model of requests that name none.
fn default_model(engine: &Engine, access: &Access) -> Result<String> {
    let mut name = DEFAULT_ALIAS.to_owned();
    resolve_alias(engine, &mut name);
    if name != DEFAULT_ALIAS {
        access.require_model(&name)?;
        return Ok(name);
    }
    installed(engine, access).map(|model| model.id).min().ok_or_else(|| {
        let text = format!("No model that moderates texts is installed. {WHAT_TO_INSTALL}");
        Error::new(Code::ModelNotFound, text).param("model")
    })
}

/// The installed models that moderate, as far as the caller may use them. Reads the models folder.
fn installed(engine: &Engine, access: &Access) -> impl Iterator<Item = ModelInfo> {
    let is_usable = |model: &ModelInfo| model.moderates && model.problem.is_none() && access.lists(&model.id);
    engine.models().list().into_iter().filter(is_usable)
}

/// The error for a classifier whose labels are not about harmful content.
fn no_moderation(model: &EncoderModel, labels: &Labels) -> Error {
    const SHOWN: usize = 8;
    let names: Vec<String> = labels.names.iter().take(SHOWN).map(|name| format!("'{}'", shorten(name))).collect();
    let more = if labels.names.len() > SHOWN { ", …" } else { "" };
    let text = format!(
        "The model '{}' has the labels {}{more}, and none is known to mean harmful content. Use another model, or state what they mean in the section [moderation.labels] of its model.toml.",
        model.id(),
        names.join(", ")
    );
    Error::invalid("model", text)
}

/// Tokenizes the texts into windows of at most the model's limit. Returns all windows, and their number by input.
fn windows(
    model: &EncoderModel,
    inputs: &[ModerationInput],
    bound: &TokenizeLimits,
) -> Result<(Vec<Tokenized>, Vec<usize>)> {
    let texts: Vec<&(String, String)> = inputs.iter().flat_map(|input| &input.texts).collect();
    let max_tokens = MAX_WINDOWS * model.limit();
    let contents: Vec<&str> = texts.iter().map(|(_, text)| text.as_str()).collect();
    let encoded = model.encode_long(&contents, &bound.clone().with_max_tokens(max_tokens));
    let mut encoded = encoded.map_err(|stopped| from_stopped(model.id(), &stopped))?.into_iter();
    let (mut all, mut counts) = (Vec::new(), Vec::new());
    for input in inputs {
        let before = all.len();
        for (field, _) in &input.texts {
            // Texts are missing only after a text that is too long, or after the client has disconnected.
            let (text, complete) = encoded.next().ok_or_else(|| Error::internal("a text was not tokenised"))?;
            if complete {
                all.extend(model.windows(text));
            }
            if !complete || all.len() > MAX_WINDOWS {
                return Err(too_long(field, model));
            }
        }
        counts.push(all.len() - before);
    }
    Ok((all, counts))
}

fn too_long(field: &str, model: &EncoderModel) -> Error {
    let message = format!(
        "The texts up to '{field}' need more than {MAX_WINDOWS} windows of {} tokens, the most that a request to the model '{}' may have. Send them in several requests.",
        model.limit(),
        model.id()
    );
    Error::new(Code::ContextLengthExceeded, message).param(field)
}
