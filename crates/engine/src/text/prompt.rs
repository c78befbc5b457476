//! What a model continues: tokens, and media among them.
//!
//! An image or a sound is not a token, but a network that can see it turns it into embeddings that take the places of tokens.
//! There the prompt has the ID of a placeholder, which is the same for all media. What tells two media apart is the hash of their
//! content: the prefix cache compares it beside the token IDs.

use std::ops::Range;
use std::sync::Arc;

use ring::digest::{Context, SHA256};

use outpost_models::causal_lm::EmbeddedTokens;
use outpost_models::kv::BLOCK;

/// The prompt of a generation. Clones share its contents.
#[derive(Clone, Debug, Default)]
pub struct Prompt {
    ids: Arc<[u32]>,
    media: Arc<[MediaSpan]>,
}

/// Consecutive positions of a prompt that have embeddings of their own. They may be computed in several steps, each of which sees
/// the positions before it.
#[derive(Clone, Debug)]
pub struct MediaSpan {
    /// Positions. Their token IDs are placeholders.
    pub positions: Range<usize>,
    /// The hash of the content and of what else its embeddings depend on.
    pub hash: u128,
    /// `[positions, width]`: the input of the first layer.
    pub embeddings: Arc<[f32]>,
}

/// What the prefix cache compares of one full block of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockKey {
    pub tokens: [u32; BLOCK],
    /// The hash of the media in the block; zero: there are none.
    pub media: u128,
}

impl Prompt {
    /// A prompt with media, in the order of their positions.
    ///
    /// # Errors
    /// If a span is empty, overlaps the one before it or goes beyond the prompt, or if its embeddings are not the same number for
    /// each position.
    pub fn new(ids: impl Into<Arc<[u32]>>, media: Vec<MediaSpan>) -> Result<Self, String> {
        let (ids, mut end) = (ids.into(), 0);
        for MediaSpan { positions, embeddings, .. } in &media {
            if positions.is_empty() || positions.start < end || positions.end > ids.len() {
                return Err(format!(
                    "media at the positions {positions:?} of a prompt of {} tokens do not fit",
                    ids.len()
                ));
            }
            if embeddings.is_empty() || !embeddings.len().is_multiple_of(positions.len()) {
                return Err(format!(
                    "the embeddings of {} positions have {} numbers, which is not a multiple",
                    positions.len(),
                    embeddings.len()
                ));
            }
            end = positions.end;
        }
        Ok(Self { ids, media: media.into() })
    }

    /// The token IDs, with placeholders for media.
    pub fn ids(&self) -> &Arc<[u32]> {
        &self.ids
    }

    pub fn media(&self) -> &[MediaSpan] {
        &self.media
    }

    pub fn len(&self) -> usize {
        self.ids.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The embeddings in a row of these positions.
    pub fn embedded(&self, row: Range<usize>) -> Vec<EmbeddedTokens<'_>> {
        let spans = self.media_in(&row);
        spans
            .map(|(span, shared)| {
                let width = span.width();
                let [first, last] =
                    [shared.start, shared.end].map(|position| (position - span.positions.start) * width);
                let (position, count) = (shared.start - row.start, shared.len());
                EmbeddedTokens { first: position, count, embeddings: &span.embeddings[first..last] }
            })
            .collect()
    }

    /// The key of a full block of the text. `tokens`: those of the block, which may go beyond the prompt.
    pub fn block_key(&self, index: usize, tokens: [u32; BLOCK]) -> BlockKey {
        let block = index * BLOCK..(index + 1) * BLOCK;
        let mut media = self.media_in(&block).peekable();
        if media.peek().is_none() {
            return BlockKey { tokens, media: 0 };
        }
        let mut hash = Context::new(&SHA256);
        for (span, shared) in media {
            hash.update(&span.hash.to_be_bytes());
            // Where in the block it is, and which part of the media that is.
            for number in [shared.start - block.start, shared.len(), shared.start - span.positions.start] {
                hash.update(&(number as u64).to_be_bytes());
            }
        }
        let first = hash.finish().as_ref().first_chunk().copied();
        BlockKey { tokens, media: first.map_or(0, u128::from_be_bytes).max(1) }
    }

    /// The media that have positions in a range, and these positions.
    fn media_in(&self, range: &Range<usize>) -> impl Iterator<Item = (&MediaSpan, Range<usize>)> {
        self.media.iter().filter_map(|span| {
            let shared = span.positions.start.max(range.start)..span.positions.end.min(range.end);
            (!shared.is_empty()).then_some((span, shared))
        })
    }
}

impl MediaSpan {
    /// Elements of the embedding of a position.
    pub fn width(&self) -> usize {
        self.embeddings.len() / self.positions.len().max(1)
    }
}

impl From<Vec<u32>> for Prompt {
    fn from(ids: Vec<u32>) -> Self {
        Arc::<[u32]>::from(ids).into()
    }
}

impl From<Arc<[u32]>> for Prompt {
    fn from(ids: Arc<[u32]>) -> Self {
        Self { ids, media: Arc::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, MediaSpan, Prompt};

    fn media(positions: std::ops::Range<usize>, hash: u128) -> MediaSpan {
        let embeddings = positions.clone().flat_map(|position| [position as f32, -1.]).collect();
        MediaSpan { positions, hash, embeddings }
    }

    fn prompt(media: Vec<MediaSpan>) -> Prompt {
        Prompt::new(vec![7; 3 * BLOCK], media).unwrap()
    }

    #[test]
    fn rows_get_their_part_of_the_embeddings() {
        let prompt = prompt(vec![media(4..10, 1), media(10..20, 2)]);
        let of = |row| -> Vec<_> {
            prompt
                .embedded(row)
                .into_iter()
                .map(|one| (one.first, one.embeddings.len() / 2, one.embeddings[0]))
                .collect()
        };
        assert_eq!(of(0..4), []);
        assert_eq!(of(0..48), [(4, 6, 4.), (10, 10, 10.)]);
        assert_eq!(of(8..12), [(0, 2, 8.), (2, 2, 10.)]);
        assert_eq!(of(19..30), [(0, 1, 19.)]);
    }

    #[test]
    fn blocks_differ_by_their_media() {
        let key = |spans: Vec<MediaSpan>, block| prompt(spans).block_key(block, [7; BLOCK]);
        let none = key(vec![], 0);
        assert_eq!((none.media, key(vec![media(16..20, 1)], 0)), (0, none), "media after the block");
        let different = [
            none,
            key(vec![media(4..12, 1)], 0),
            key(vec![media(4..12, 2)], 0),
            key(vec![media(5..13, 1)], 0),
            key(vec![media(4..11, 1)], 0),
            key(vec![media(4..8, 1), media(8..12, 1)], 0),
            key(vec![media(0..32, 1)], 0),
            key(vec![media(0..32, 1)], 1),
        ];
        for (index, one) in different.iter().enumerate() {
            assert!(!different[..index].contains(one), "{index}");
        }
        assert_eq!(key(vec![media(4..12, 1)], 0), different[1]);
        assert_eq!(key(vec![media(4..12, 1), media(20..30, 9)], 0), different[1]);
    }

    #[test]
    fn media_must_fit() {
        let new = |media: Vec<MediaSpan>| {
            Prompt::new(vec![7; 20], media).map(drop).map_err(|error| error.contains("media at"))
        };
        assert_eq!(new(vec![media(0..10, 1), media(10..20, 1)]), Ok(()));
        for wrong in [vec![media(3..3, 1)], vec![media(10..21, 1)], vec![media(0..10, 1), media(9..12, 1)]] {
            assert_eq!(new(wrong), Err(true));
        }
        assert_eq!(new(vec![MediaSpan { embeddings: vec![0.; 5].into(), ..media(0..2, 1) }]), Err(false));
    }
}
