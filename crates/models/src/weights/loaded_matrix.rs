//! A matrix of a network, as adapters find it.

use std::ops::Range;

use crate::backend::{ConvShape, DType};

/// A matrix that was loaded. Adapters add to its products.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedMatrix {
    pub stem: String,
    /// Its rows in the checkpoint's tensor.
    pub rows: Range<usize>,
    /// Rows of the checkpoint's tensor.
    pub total: usize,
    pub columns: usize,
    /// The type of its elements.
    pub dtype: DType,
    /// The shape of a convolution.
    pub window: Option<ConvShape>,
    /// [`Linear::id`](crate::nn::Linear::id) or [`Conv::id`](crate::nn::Conv::id).
    pub id: usize,
}

impl LoadedMatrix {
    /// The end of its stem, after the layer if there is one, such as `attn_q`.
    pub fn projection(&self) -> &str {
        let in_layer = self.stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        in_layer.map_or(self.stem.as_str(), |(_, projection)| projection)
    }

    /// The layer, if its stem begins with one, as in `blk.3.attn_q`.
    pub fn layer(&self) -> Option<usize> {
        self.stem.strip_prefix("blk.")?.split('.').next()?.parse().ok()
    }
}
