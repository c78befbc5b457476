//! The networks that make vectors: encoders, which see a whole text, and decoders, of which the last token's
//! vector has seen it.

use std::sync::Arc;

use candle_core::Result;
use outpost_kernels::Kind;

use crate::engine::checkpoint::Checkpoint;
use crate::models::ModelError;
use crate::models::encoder::{self, Encoder, Head, Sizes, Tokenized};
use crate::models::hyper::Hyper;
use crate::models::kv::{BlockId, KvArena, KvType, blocks_for};
use crate::models::llama::{Llama, Row, Wanted};
use crate::models::scratch::{Cpu, Largest, scratch_bytes};

/// Tokens of a decoder that are computed at a time.
const CHUNK: usize = 128;

/// What a model's files tell of its network.
#[derive(Clone, Debug)]
pub(in crate::engine) enum Outline {
    Encoder(Sizes),
    Decoder(Box<Hyper>),
}

pub(super) enum Network {
    Encoder(Box<Encoder>, Option<Head>),
    Decoder(Box<Llama>),
}

/// A batch on its way through a network.
pub(in crate::engine) enum Pass {
    Encoder(encoder::Pass),
    Decoder(Reading),
}

/// A batch that a decoder reads, some tokens at a time.
pub(in crate::engine) struct Reading {
    texts: Vec<Text>,
    arena: KvArena,
}

struct Text {
    ids: Vec<u32>,
    blocks: Vec<BlockId>,
    /// So many were read.
    read: usize,
    /// The last token's, `[width]`, when all were.
    vector: Vec<f32>,
}

impl Outline {
    pub fn width(&self) -> usize {
        match self {
            Self::Encoder(sizes) => sizes.width,
            Self::Decoder(hyper) => hyper.width,
        }
    }

    /// Tokens of a text, at most.
    pub fn context(&self) -> usize {
        match self {
            Self::Encoder(sizes) => sizes.context,
            Self::Decoder(hyper) => hyper.context,
        }
    }

    pub fn vocabulary(&self) -> usize {
        match self {
            Self::Encoder(sizes) => sizes.vocabulary,
            Self::Decoder(hyper) => hyper.vocabulary,
        }
    }

    /// An upper bound of what a batch of so many tokens takes beside the weights; bytes.
    pub fn pass_bytes(&self, tokens: usize, texts: usize, threads: usize) -> u64 {
        match self {
            Self::Encoder(sizes) => Encoder::pass_bytes(sizes, tokens, texts, threads),
            Self::Decoder(hyper) => {
                let step = Largest { tokens: CHUNK, rows: CHUNK, logits: 0, threads };
                let block = Llama::shape(hyper, KvType::F16).block_bytes();
                scratch_bytes(hyper, &step) + (blocks_for(tokens) + texts) as u64 * block
            }
        }
    }
}

impl Network {
    pub fn load(
        files: &Checkpoint,
        outline: &Outline,
        precision: Option<Kind>,
        cpu: Arc<Cpu>,
    ) -> std::result::Result<Self, ModelError> {
        match outline {
            Outline::Decoder(_) => Ok(Self::Decoder(Box::new(Llama::load_headless(files.weights(), precision, cpu)?))),
            Outline::Encoder(sizes) => files.with_encoder(outline, |source| {
                let (encoder, head) = Encoder::load(source, sizes.clone(), files.judge(), precision, cpu)?;
                Ok(Self::Encoder(Box::new(encoder), head))
            }),
        }
    }

    pub fn begin(&self, texts: &[&Tokenized]) -> Result<Pass> {
        match self {
            Self::Encoder(encoder, _) => encoder.begin(texts).map(Pass::Encoder),
            Self::Decoder(network) => {
                let mut arena = KvArena::new(network.kv_shape(KvType::F16));
                let mut next = 0;
                let text = |text: &&Tokenized| {
                    let first = next;
                    next += blocks_for(text.ids.len()) as BlockId;
                    Text { ids: text.ids.clone(), blocks: (first..next).collect(), read: 0, vector: Vec::new() }
                };
                let texts = texts.iter().map(text).collect();
                (0..next).for_each(|id| arena.ensure(id));
                Ok(Pass::Decoder(Reading { texts, arena }))
            }
        }
    }

    /// A part of the work that others may wait for. `true`: it was the last.
    pub fn advance(&self, pass: &mut Pass) -> Result<bool> {
        match (self, pass) {
            (Self::Encoder(encoder, _), Pass::Encoder(pass)) => encoder.advance(pass),
            (Self::Decoder(network), Pass::Decoder(reading)) => reading.advance(network),
            _ => candle_core::bail!("a batch of another network"),
        }
    }

    /// What `pool` makes of each text's vectors, `[tokens, width]`; of a judge, one logit for each.
    pub fn vectors(&self, pass: &Pass, pool: impl Fn(&[f32]) -> Vec<f32>) -> Result<Vec<Vec<f32>>> {
        match (self, pass) {
            (Self::Encoder(encoder, head), Pass::Encoder(pass)) => {
                let width = encoder.sizes().width;
                let one = |vectors: &[f32]| match head {
                    Some(head) => Ok(vec![head.score(encoder.cpu(), vectors, width)?]),
                    None => Ok(pool(vectors)),
                };
                pass.vectors(width).map(one).collect()
            }
            (_, Pass::Decoder(reading)) => Ok(reading.texts.iter().map(|text| pool(&text.vector)).collect()),
            _ => candle_core::bail!("a batch of another network"),
        }
    }
}

impl Reading {
    /// Reads the next tokens, of as many texts as it takes.
    fn advance(&mut self, network: &Llama) -> Result<bool> {
        let (mut rows, mut taken, mut left) = (Vec::new(), Vec::new(), CHUNK);
        for (index, text) in self.texts.iter().enumerate() {
            let count = left.min(text.ids.len() - text.read);
            let Some(tokens) = text.ids.get(text.read..text.read + count).filter(|tokens| !tokens.is_empty()) else {
                continue;
            };
            let last = text.read + count == text.ids.len();
            let logits = if last { Wanted::Last } else { Wanted::Nothing };
            rows.push(Row {
                tokens,
                start: text.read,
                blocks: &text.blocks,
                logits,
                long: network.is_long(text.ids.len()),
            });
            taken.push((index, count, last));
            left -= count;
        }
        let vectors = network.hidden(&rows, &mut self.arena)?;
        let mut vectors = vectors.chunks_exact(network.hyper().width);
        for (index, count, last) in taken {
            if let Some(text) = self.texts.get_mut(index) {
                text.read += count;
                if last {
                    text.vector = vectors.next().unwrap_or_default().to_vec();
                }
            }
        }
        Ok(self.texts.iter().all(|text| text.read == text.ids.len()))
    }
}
