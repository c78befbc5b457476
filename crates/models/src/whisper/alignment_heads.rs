//! The cross-attention heads that follow the audio. Their weights give the times of words.

use super::config::WhisperConfig;

/// A model of OpenAI and its alignment heads, as `(layer, head)`.
struct Known {
    /// Decoder layers.
    layers: usize,
    /// Decoder heads.
    heads: usize,
    vocabulary: usize,
    alignment: &'static [(usize, usize)],
}

/// The heads that OpenAI has published (`_ALIGNMENT_HEADS` of openai-whisper). large-v1 has the sizes of large-v2, whose
/// heads it is given.
const KNOWN: &[Known] = &[
    // tiny.en
    Known {
        layers: 4,
        heads: 6,
        vocabulary: 51_864,
        alignment: &[(1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4)],
    },
    // tiny
    Known { layers: 4, heads: 6, vocabulary: 51_865, alignment: &[(2, 2), (3, 0), (3, 2), (3, 3), (3, 4), (3, 5)] },
    // base.en
    Known { layers: 6, heads: 8, vocabulary: 51_864, alignment: &[(3, 3), (4, 7), (5, 1), (5, 5), (5, 7)] },
    // base
    Known {
        layers: 6,
        heads: 8,
        vocabulary: 51_865,
        alignment: &[(3, 1), (4, 2), (4, 3), (4, 7), (5, 1), (5, 2), (5, 4), (5, 6)],
    },
    // small.en
    Known {
        layers: 12,
        heads: 12,
        vocabulary: 51_864,
        alignment: &[
            (6, 6),
            (7, 0),
            (7, 3),
            (7, 8),
            (8, 2),
            (8, 5),
            (8, 7),
            (9, 0),
            (9, 4),
            (9, 8),
            (9, 10),
            (10, 0),
            (10, 1),
            (10, 2),
            (10, 3),
            (10, 6),
            (10, 11),
            (11, 2),
            (11, 4),
        ],
    },
    // small
    Known {
        layers: 12,
        heads: 12,
        vocabulary: 51_865,
        alignment: &[(5, 3), (5, 9), (8, 0), (8, 4), (8, 7), (8, 8), (9, 0), (9, 7), (9, 9), (10, 5)],
    },
    // medium.en
    Known {
        layers: 24,
        heads: 16,
        vocabulary: 51_864,
        alignment: &[
            (11, 4),
            (14, 1),
            (14, 12),
            (14, 14),
            (15, 4),
            (16, 0),
            (16, 4),
            (16, 9),
            (17, 12),
            (17, 14),
            (18, 7),
            (18, 10),
            (18, 15),
            (20, 0),
            (20, 3),
            (20, 9),
            (20, 14),
            (21, 12),
        ],
    },
    // medium
    Known {
        layers: 24,
        heads: 16,
        vocabulary: 51_865,
        alignment: &[(13, 15), (15, 4), (15, 15), (16, 1), (20, 0), (23, 4)],
    },
    // large-v2
    Known {
        layers: 32,
        heads: 20,
        vocabulary: 51_865,
        alignment: &[
            (10, 12),
            (13, 17),
            (16, 11),
            (16, 12),
            (16, 13),
            (17, 15),
            (17, 16),
            (18, 4),
            (18, 11),
            (18, 19),
            (19, 11),
            (21, 2),
            (21, 3),
            (22, 3),
            (22, 9),
            (22, 12),
            (23, 5),
            (23, 7),
            (23, 13),
            (25, 5),
            (26, 1),
            (26, 12),
            (27, 15),
        ],
    },
    // large-v3
    Known {
        layers: 32,
        heads: 20,
        vocabulary: 51_866,
        alignment: &[(7, 0), (10, 17), (12, 18), (13, 12), (16, 1), (17, 14), (19, 11), (21, 4), (24, 1), (25, 6)],
    },
    // large-v3-turbo
    Known { layers: 4, heads: 20, vocabulary: 51_866, alignment: &[(2, 4), (2, 11), (3, 3), (3, 6), (3, 11), (3, 14)] },
];

/// The alignment heads of a model, as `(layer, head)`, for checkpoints that name none: those of OpenAI's model of the same
/// sizes, or else all heads of the upper half of the decoder's layers, as in openai-whisper.
pub fn alignment_heads(config: &WhisperConfig) -> Vec<(usize, usize)> {
    let WhisperConfig { decoder_layers: layers, decoder_heads: heads, vocabulary, .. } = *config;
    let known = KNOWN.iter().find(|known| (known.layers, known.heads, known.vocabulary) == (layers, heads, vocabulary));
    match known {
        Some(known) => known.alignment.to_vec(),
        None => (layers / 2..layers).flat_map(|layer| (0..heads).map(move |head| (layer, head))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_heads_exist() {
        for Known { layers, heads, alignment, .. } in KNOWN {
            assert!(alignment.iter().all(|(layer, head)| layer < layers && head < heads));
        }
    }
}
