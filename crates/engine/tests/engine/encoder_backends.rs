//! Compares encoders on each backend with sentence-transformers, with the fixtures of `encoder_families`, but without an
//! engine: the tokens come from the fixtures.

use outpost_models::ModelError;
use outpost_models::backend::Recurrent;
use outpost_models::decoder::{Decoder, EncodedTokens, ScoreHeadConfig};
use outpost_models::encoder::{
    Encoder, EncoderConfig, EncoderWeights, MODULE_STEM, ModuleWeights, Pooling, Projection, ProjectionActivation,
    ProjectionConfig, STATIC_MODEL_TYPE, StaticConfig, StaticEmbedding, Tokenized, normalise,
};
use outpost_models::nn::Context;
use outpost_models::safetensors::ModelFolder;
use serde::Deserialize;

use crate::encoder_families::{read, root};
use crate::harness::{candle, candle_tolerance, cpu};

#[derive(Deserialize)]
struct Cases {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    #[serde(rename = "type")]
    model_type: String,
    ranks: bool,
    pooling: Option<String>,
    #[serde(default)]
    normalize: bool,
    dtype: Option<String>,
}

#[derive(Deserialize)]
struct Expected {
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    ids: Vec<u32>,
    /// 1 for the tokens of the second text of a pair.
    types: Option<Vec<u32>>,
    vector: Option<Vec<f32>>,
    logit: Option<f32>,
}

impl Row {
    fn tokens(&self) -> Tokenized {
        let second = self.types.as_ref().and_then(|types| types.iter().position(|kind| *kind == 1));
        Tokenized { ids: self.ids.clone(), second: second.unwrap_or(self.ids.len()) }
    }

    fn expected(&self) -> Vec<f32> {
        self.vector.clone().unwrap_or_else(|| vec![self.logit.unwrap()])
    }
}

/// The vector of each text, or the score of each pair.
fn compute<B: Recurrent>(backend: &B, case: &Case, texts: &[&Tokenized]) -> Result<Vec<Vec<f32>>, ModelError> {
    let folder = ModelFolder::open(&root().join(&case.name)).unwrap();
    if case.model_type == STATIC_MODEL_TYPE {
        let config = StaticConfig::from_folder(&folder)?;
        let table = StaticEmbedding::load(&folder, config)?;
        return texts.iter().map(|text| Ok(case.pool(&table.look_up(&text.ids)?, config.width))).collect();
    }
    if ["qwen3", "gemma3_text"].contains(&case.model_type.as_str()) {
        let head_config = match case.name.as_str() {
            _ if !case.ranks => None,
            "rank-qwen3-head" => Some(ScoreHeadConfig::Matrix { logits: 1 }),
            // The answers yes and no.
            _ => Some(ScoreHeadConfig::Tokens { positive: 258, negative: Some(257) }),
        };
        let (decoder, head) = Decoder::load_encoder(&folder, head_config, None, backend)?;
        // Padding at the end does not count.
        let padding: &[u32] = if matches!(head_config, Some(ScoreHeadConfig::Matrix { .. })) { &[310] } else { &[] };
        let counted = |ids: &'_ [u32]| ids.strip_suffix(padding).unwrap_or(ids).to_vec();
        let counted: Vec<_> = texts.iter().map(|text| counted(&text.ids)).collect();
        let ids: Vec<_> = counted.iter().map(|ids| (ids.as_slice(), None)).collect();
        let is_mean = case.pooling.as_deref() == Some("mean");
        let wanted = if is_mean { EncodedTokens::All } else { EncodedTokens::Last };
        let mut pass = decoder.begin_encode(&ids, wanted)?;
        while !decoder.advance(&mut pass)? {}
        let states = decoder.hidden_states(&pass)?;
        return match head {
            Some(head) => head.logits(backend, &states),
            None => {
                case.project(backend, states.iter().map(|states| case.pool(states, decoder.config().width)).collect())
            }
        };
    }
    let config = EncoderConfig::from_config_json(&folder.config)?;
    let (width, weights) = (config.width, EncoderWeights::new(&folder, config.family));
    let cross_encoder = case.ranks.then_some(&folder.config);
    let (encoder, head) = Encoder::load(&weights, config, cross_encoder, None, backend)?;
    let context = &Context::new(backend);
    let mut pass = encoder.begin(context, texts, None)?;
    while !encoder.advance(context, &mut pass)? {}
    let states = pass.hidden_states(backend)?;
    match &head {
        Some(head) => states.texts().map(|states| head.logits(context, states, width)).collect(),
        None => case.project(backend, states.texts().map(|states| case.pool(states, width)).collect()),
    }
}

impl Case {
    /// The pooled vector of a text's hidden states.
    fn pool(&self, states: &[f32], width: usize) -> Vec<f32> {
        let pooling = match self.pooling.as_deref() {
            Some("cls") => Pooling::Cls,
            Some("lasttoken") => Pooling::Last,
            _ => Pooling::Mean,
        };
        let mut vector = Vec::new();
        pooling.add(states, width, &mut vector);
        vector
    }

    /// Applies the `Dense` modules of the folder.
    fn project<B: Recurrent>(&self, backend: &B, mut vectors: Vec<Vec<f32>>) -> Result<Vec<Vec<f32>>, ModelError> {
        for folder in ["2_Dense", "3_Dense"].map(|name| root().join(&self.name).join(name)) {
            if !folder.is_dir() {
                continue;
            }
            let json: serde_json::Value = read(&folder.join("config.json"));
            let size = |key: &str| json[key].as_u64().unwrap() as usize;
            let is_tanh = json["activation_function"].as_str().unwrap().ends_with("Tanh");
            let activation = if is_tanh { ProjectionActivation::Tanh } else { ProjectionActivation::Identity };
            let (inputs, outputs, biased) = (size("in_features"), size("out_features"), json["bias"] == true);
            let config = ProjectionConfig { inputs, outputs, biased, activation };
            let weights = ModuleWeights::open(&folder.join("model.safetensors"))?;
            vectors = Projection::load(&weights, MODULE_STEM, &config, None, backend)?.forward(backend, &vectors)?;
        }
        Ok(vectors)
    }
}

fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs() / b.abs().max(1.));
    differences.fold(0., |largest, x| if x > largest || x.is_nan() { x } else { largest })
}

/// `rounds_to_bf16`: whether activations are rounded to bf16 if weights are.
fn check<B: Recurrent>(backend: &B, name: &str, rounds_to_bf16: bool) {
    let Cases { cases } = read(&root().join("cases.json"));
    let mut wrong = Vec::new();
    for case in cases {
        let Expected { rows } = read(&root().join(&case.name).join("expected.json"));
        let texts: Vec<Tokenized> = rows.iter().map(Row::tokens).collect();
        let (mut reference, mut company) = (0f32, 0f32);
        let mut together = compute(backend, &case, &texts.iter().collect::<Vec<_>>()).unwrap();
        for ((row, text), found) in rows.iter().zip(&texts).zip(&mut together) {
            let mut alone = compute(backend, &case, &[text]).unwrap().remove(0);
            if case.normalize {
                normalise(found);
                normalise(&mut alone);
            }
            reference = reference.max(difference(found, &row.expected()));
            company = company.max(difference(found, &alone));
        }
        println!("{:<20} {name}: {reference:.2e} from the reference, {company:.2e} from texts alone", case.name);
        let is_rounded = rounds_to_bf16 && case.dtype.as_deref() == Some("bfloat16");
        let bound = candle_tolerance(if is_rounded { 0.03 } else { 1e-5 }, 0.05);
        let far = reference > bound || company > 1e-5;
        if far || reference.is_nan() {
            wrong.push(case.name);
        }
    }
    assert!(wrong.is_empty(), "far from the reference: {wrong:?}");
}

#[test]
fn encoders_match_the_reference_on_the_cpu() {
    check(&cpu(), "cpu", true);
}

#[test]
fn encoders_match_the_reference_on_candle() {
    check(&candle(), "candle", false);
}
