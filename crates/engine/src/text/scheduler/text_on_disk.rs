//! Texts in the prefix cache on disk: what a request waits for, and what is written of a sequence that has ended.

use super::block_pool::TextBlock;
use super::ids::ModelId;
use super::prefix_cache::Parent;
use crate::text::prefix_disk::names::DiskRoot;
use crate::text::prompt::BlockKey;
use outpost_models::kv::BLOCK;
use outpost_models::state_layout::{StateGroup, StateKind};

/// A request that waits until blocks are read.
#[derive(Debug)]
pub struct Restore {
    pub model: ModelId,
    pub root: Parent,
    /// The keys of the prefix.
    pub keys: Vec<BlockKey>,
    /// The tick of its beginning.
    pub since: u64,
}

/// A prefix that is on disk as far as it is not in memory.
#[derive(Debug, PartialEq, Eq)]
pub struct PrefixOnDisk {
    /// The blocks to read, in the order of the text, those of the first group first.
    pub missing: Vec<TextBlock>,
    /// All its blocks that the request needs.
    pub needed: Vec<TextBlock>,
}

/// The text of a sequence that has ended.
#[derive(Debug)]
pub struct EndedText {
    pub model: ModelId,
    pub disk: DiskRoot,
    /// Groups of the model.
    pub groups: usize,
    pub root: Parent,
    /// The keys of its cached blocks.
    pub keys: Vec<BlockKey>,
    /// Tokens of the prompt.
    pub prompt: usize,
}

impl EndedText {
    /// True if later texts may need the block: those that continue this one or its prompt, or the same prompt again, whose last token is
    /// always computed.
    pub fn may_need(&self, group: StateGroup, index: usize) -> bool {
        match group.kind {
            StateKind::Attention { window: None } | StateKind::Recurrent => true,
            StateKind::Attention { window: Some(_) } => {
                let is_last_window = |end: &usize| (group.first_needed(end * BLOCK)..*end).contains(&index);
                let ends = [self.prompt.saturating_sub(1) / BLOCK, self.prompt / BLOCK, self.keys.len()];
                ends.iter().any(is_last_window)
            }
        }
    }
}
