//! Writes weights in MXFP4 without loss (OCP Microscaling Formats 1.0,
//! <https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf>), for checkpoints of tests.

/// The sizes of the codes without a sign.
const SIZES: [f32; 8] = [0., 0.5, 1., 1.5, 2., 3., 4., 6.];

/// Weights as two tensors of bytes, as in checkpoints of gpt-oss: for each group of 32 weights sixteen bytes of codes, the first of two
/// adjacent weights in the low bits, and one exponent.
pub struct Mxfp4 {
    pub blocks: Vec<u8>,
    pub scales: Vec<u8>,
}

/// Writes weights that MXFP4 holds exactly.
///
/// # Panics
/// If they are not groups of 32, or a group has no exponent with which all of its weights are exact.
pub fn encode(weights: &[f32]) -> Mxfp4 {
    assert!(weights.len().is_multiple_of(32), "{} weights are not groups of 32", weights.len());
    let (mut blocks, mut scales) = (Vec::new(), Vec::new());
    for group in weights.chunks(32) {
        let coded = (0..=254u8).find_map(|scale| Some((scale, codes(group, scale)?)));
        let (scale, codes) = coded.unwrap_or_else(|| panic!("MXFP4 does not hold {group:?}"));
        scales.push(scale);
        blocks.extend(codes.chunks(2).map(|pair| pair[0] | pair[1] << 4));
    }
    Mxfp4 { blocks, scales }
}

fn codes(group: &[f32], scale: u8) -> Option<Vec<u8>> {
    let scale = 2f64.powi(i32::from(scale) - 127);
    let code = |weight: &f32| {
        let size = SIZES.iter().position(|size| f64::from(*size) * scale == f64::from(weight.abs()))?;
        Some(size as u8 | u8::from(weight.is_sign_negative()) << 3)
    };
    group.iter().map(code).collect()
}

/// The same weights as blocks of a GGUF file: the exponent, then sixteen bytes, each of which holds two weights that are 16 apart.
pub fn gguf_blocks(weights: &[f32]) -> Vec<u8> {
    let reordered = |group: &[f32]| (0..16).flat_map(|i| [group[i], group[i + 16]]).collect::<Vec<_>>();
    let mut bytes = Vec::new();
    for group in weights.chunks(32) {
        let Mxfp4 { blocks, scales } = encode(&reordered(group));
        bytes.extend(scales);
        bytes.extend(blocks);
    }
    bytes
}
