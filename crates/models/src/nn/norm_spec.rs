//! The parameters of norms.

use crate::backend::NormKind;

/// How the norms of a network compute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormSpec {
    pub kind: NormKind,
    pub epsilon: f32,
    /// The checkpoint has the weights minus this.
    pub offset: f32,
}
