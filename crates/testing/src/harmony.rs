//! A tiny model in the style of gpt-oss, which writes harmony.

use crate::tiny_model::{DEFAULT, TinyModel};

/// The tokens of the format, and those that become the role, which is a single token of gpt-oss, too.
pub const MARKERS: &[(&str, i32)] = &[
    ("<|start|>", 3),
    ("<|channel|>", 3),
    ("<|constrain|>", 3),
    ("<|message|>", 3),
    ("<|end|>", 3),
    ("<|call|>", 3),
    ("<|return|>", 3),
    ("as", 1),
    ("ass", 1),
    ("assi", 1),
    ("assis", 1),
    ("assist", 1),
    ("assistan", 1),
    ("assistant", 1),
];

/// "an" is a token of all tiny models, and merged first.
const MERGES: &[&str] = &["a s", "as s", "ass i", "assi s", "assis t", "assist an", "assistan t"];

pub const MODEL: TinyModel =
    TinyModel { context: 2048, template: Some(TEMPLATE), markers: MARKERS, merges: MERGES, ..DEFAULT };

/// Behaves as the published template does, without the built-in tools: it drops the reasoning of earlier turns, writes only the
/// first call of a message, takes the name of a result's function from the call before it, and fails if a tool has no
/// description.
pub const TEMPLATE: &str = include_str!("harmony.jinja");
