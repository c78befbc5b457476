//! A decoder's sizes, read from the metadata and checked against each other.

use super::ModelError;
use super::family::{self, Family};
use super::gguf::{Header, Metadata};

/// Sizes and constants of a decoder of the Llama kind.
#[derive(Clone, Debug)]
pub struct Hyper {
    pub family: &'static Family,
    pub blocks: usize,
    pub width: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_width: usize,
    pub inner: usize,
    pub vocabulary: usize,
    pub context: usize,
    pub epsilon: f32,
    pub rope_base: f32,
    /// Positions are divided by this (linear scaling); 1 where the model has none.
    pub rope_divisor: f32,
}

impl Hyper {
    pub fn read(header: &Header) -> Result<Self, ModelError> {
        let metadata = &header.metadata;
        let name = metadata
            .text("general.architecture")
            .ok_or_else(|| ModelError::invalid("the metadata has no general.architecture"))?;
        let family = family::find(name).ok_or_else(|| {
            ModelError::invalid(format!("the architecture {name} is not supported: {} are", family::names()))
        })?;
        let sizes = Sizes { metadata, name };
        let width = sizes.required("embedding_length", 1 << 16)?;
        let heads = sizes.required("attention.head_count", 1 << 10)?;
        let hyper = Self {
            family,
            blocks: sizes.required("block_count", 1 << 10)?,
            width,
            heads,
            kv_heads: sizes.optional("attention.head_count_kv", heads, 1 << 10)?,
            head_width: sizes.optional("attention.key_length", width / heads, 1 << 12)?,
            inner: sizes.required("feed_forward_length", 1 << 20)?,
            vocabulary: vocabulary(header)?,
            context: sizes.required("context_length", 1 << 24)?,
            epsilon: sizes.float("attention.layer_norm_rms_epsilon", 1e-5)?,
            rope_base: sizes.float("rope.freq_base", 10_000.)?,
            rope_divisor: rope_divisor(&sizes)?,
        };
        hyper.check(&sizes)?;
        Ok(hyper)
    }

    fn check(&self, sizes: &Sizes<'_>) -> Result<(), ModelError> {
        let Self { heads, kv_heads, head_width, width, .. } = self;
        if heads % kv_heads != 0 {
            return sizes.refuse(format!("{heads} heads cannot share {kv_heads} key-value heads"));
        }
        if self.metadata_head(sizes) && width % heads != 0 {
            return sizes.refuse(format!("the width {width} does not divide into {heads} heads"));
        }
        if *head_width == 0 || head_width % 2 != 0 {
            return sizes.refuse(format!("heads of {head_width} numbers cannot be rotated"));
        }
        for (key, what) in
            [("attention.value_length", "value heads"), ("rope.dimension_count", "rotated parts of heads")]
        {
            let other = sizes.optional(key, *head_width, 1 << 12)?;
            if other != *head_width {
                return sizes.refuse(format!("{what} of {other} beside heads of {head_width} are not supported"));
            }
        }
        if sizes.whole("expert_count").is_some_and(|count| count > 0) {
            return sizes.refuse("mixtures of experts are not supported".to_owned());
        }
        Ok(())
    }

    fn metadata_head(&self, sizes: &Sizes<'_>) -> bool {
        sizes.whole("attention.key_length").is_none()
    }
}

/// The embedding's rows count the vocabulary: the one number that the weights must agree with.
fn vocabulary(header: &Header) -> Result<usize, ModelError> {
    let table = header.tensor("token_embd.weight");
    match table.map(|table| table.shape.as_slice()) {
        Some(&[rows, _]) if rows <= 1 << 22 => Ok(rows),
        Some(shape) => Err(ModelError::invalid(format!("tensor token_embd.weight has the impossible shape {shape:?}"))),
        None => Err(ModelError::invalid("the file has no tensor token_embd.weight")),
    }
}

fn rope_divisor(sizes: &Sizes<'_>) -> Result<f32, ModelError> {
    match sizes.metadata.text(&sizes.key("rope.scaling.type")) {
        None | Some("none") => Ok(1.),
        Some("linear") => sizes.float("rope.scaling.factor", 1.),
        Some(other) => Err(ModelError::invalid(format!("rotary scaling of the type {other} is not supported"))),
    }
}

/// Metadata under the architecture's prefix.
struct Sizes<'a> {
    metadata: &'a Metadata,
    name: &'a str,
}

impl Sizes<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }

    fn whole(&self, key: &str) -> Option<u64> {
        self.metadata.whole(&self.key(key))
    }

    fn refuse<T>(&self, message: String) -> Result<T, ModelError> {
        Err(ModelError::Invalid(format!("the metadata describes no model: {message}")))
    }

    fn required(&self, key: &str, most: usize) -> Result<usize, ModelError> {
        if self.metadata.get(&self.key(key)).is_none() {
            return self.refuse(format!("{} is missing", self.key(key)));
        }
        self.optional(key, 0, most)
    }

    fn optional(&self, key: &str, otherwise: usize, most: usize) -> Result<usize, ModelError> {
        let name = self.key(key);
        let Some(value) = self.metadata.get(&name) else { return Ok(otherwise) };
        match self.whole(key).and_then(|number| usize::try_from(number).ok()) {
            Some(number) if (1..=most).contains(&number) => Ok(number),
            _ => self.refuse(format!("{name} is {value:?}, it must be a number from 1 to {most}")),
        }
    }

    fn float(&self, key: &str, otherwise: f32) -> Result<f32, ModelError> {
        let name = self.key(key);
        if self.metadata.get(&name).is_none() {
            return Ok(otherwise);
        }
        match self.metadata.float(&name).map(|number| number as f32) {
            Some(number) if number.is_finite() && number > 0. => Ok(number),
            _ => self.refuse(format!("{name} must be a positive number")),
        }
    }
}
