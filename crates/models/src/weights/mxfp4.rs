//! Matrices in MXFP4 whose codes and scales are tensors of their own, as in OpenAI's checkpoints of gpt-oss
//! (<https://arxiv.org/abs/2508.10925>): `NAME_blocks`, `[experts, rows, groups, 16]`, and `NAME_scales`, `[experts, rows, groups]`, both
//! of bytes. A group is 32 weights of a row. The rest of the code sees them as one tensor NAME, `[experts, rows, 32 * groups]`.

use std::fs::File;

use super::mxfp4_files::{CODES, Mxfp4Files};
use super::tensor_rows::check_rows;
use super::{Rows, flat};
use crate::backend::DType;
use crate::error::ModelError;
use crate::safetensors::{MXFP4_CODES, MXFP4_SCALES, ModelFolder, TensorInfo};

/// A tensor whose codes and scales are tensors of their own.
pub(super) struct Mxfp4Tensor<'a> {
    blocks: (&'a TensorInfo, &'a File),
    scales: (&'a TensorInfo, &'a File),
}

impl ModelFolder {
    /// The tensors of the codes and the scales of a matrix, if both exist.
    pub(super) fn mxfp4_tensor(&self, name: &str) -> Option<Mxfp4Tensor<'_>> {
        let tensor = |ending: &str| self.tensor(&format!("{name}{ending}"));
        Some(Mxfp4Tensor { blocks: tensor(MXFP4_CODES)?, scales: tensor(MXFP4_SCALES)? })
    }

    /// The name of the matrix that a tensor belongs to, for one of its two tensors.
    pub(super) fn matrix_name(&self, name: &str) -> Option<String> {
        let has = |stem: &str, ending: &str| self.tensor(&format!("{stem}{ending}")).is_some();
        match (name.strip_suffix(MXFP4_CODES), name.strip_suffix(MXFP4_SCALES)) {
            (Some(stem), _) if has(stem, MXFP4_SCALES) => Some(stem.to_owned()),
            (_, Some(stem)) if has(stem, MXFP4_CODES) => None,
            _ => Some(name.to_owned()),
        }
    }
}

impl<'a> Mxfp4Tensor<'a> {
    /// The shape of the matrix, which both tensors must fit: see [`Self::rows`].
    pub fn shape(&self) -> Vec<usize> {
        match self.blocks.0.shape.as_slice() {
            [outer @ .., groups, _] => {
                outer.iter().copied().chain([groups.saturating_mul(DType::MXFP4.block())]).collect()
            }
            other => other.to_vec(),
        }
    }

    /// `count` rows from `first` on, of the rows of all experts.
    ///
    /// # Errors
    /// If the tensors do not fit together, or there are not as many rows.
    pub fn rows(&self, first: usize, count: usize) -> Result<Rows<'a>, ModelError> {
        self.check()?;
        let (row_count, columns) = flat(&self.shape());
        check_rows(&self.blocks.0.name, row_count, first, count)?;
        let groups = columns / DType::MXFP4.block();
        let at =
            |(info, file): (&TensorInfo, &'a File), row_bytes: usize| (file, info.start + (first * row_bytes) as u64);
        let files = Mxfp4Files { codes: at(self.blocks, groups * CODES), scales: at(self.scales, groups) };
        Ok(Rows::from_mxfp4(count, columns, files))
    }

    fn check(&self) -> Result<(), ModelError> {
        let (blocks, scales) = (self.blocks.0, self.scales.0);
        for info in [blocks, scales] {
            if info.dtype != "U8" || info.bytes != info.elements {
                return Err(ModelError::Checkpoint(format!(
                    "tensor {} has the type {}; codes and scales of MXFP4 must be U8",
                    info.name, info.dtype
                )));
            }
        }
        match blocks.shape.as_slice() {
            [outer @ .., CODES] if outer.len() > 1 && outer == scales.shape => Ok(()),
            shape => Err(ModelError::Checkpoint(format!(
                "tensor {} has the shape {shape:?}, which does not fit {} of the shape {:?}: codes of MXFP4 must be [experts, rows, groups, {CODES}], and scales [experts, rows, groups]",
                blocks.name, scales.name, scales.shape
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use outpost_testing::mxfp4::{Mxfp4, encode, gguf_blocks};
    use outpost_testing::rng::TestRng;
    use serde_json::{Map, Value, json};

    use super::*;
    use crate::weights::Weights;

    /// Weights of random codes and scales.
    fn weights(count: usize) -> Vec<f32> {
        let mut rng = TestRng(5);
        let mut group = || {
            let scale = 2f32.powi(rng.below(7) as i32 - 8);
            let mut weight = |_| {
                [0., 0.5, 1., 1.5, 2., 3., 4., 6.][rng.below(8) as usize] * scale * [1., -1.][rng.below(2) as usize]
            };
            (0..32).map(&mut weight).collect::<Vec<f32>>()
        };
        (0..count / 32).flat_map(|_| group()).collect()
    }

    /// A file with tensors of bytes.
    fn write(folder: &Path, tensors: &[(&str, &[usize], &[u8])]) -> PathBuf {
        let (mut header, mut data) = (Map::new(), Vec::new());
        for (name, shape, bytes) in tensors {
            let offsets = [data.len(), data.len() + bytes.len()];
            header.insert((*name).to_owned(), json!({"dtype": "U8", "shape": shape, "data_offsets": offsets}));
            data.extend_from_slice(bytes);
        }
        let header = Value::Object(header).to_string();
        let path = folder.join("model.safetensors");
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    const SHAPE: [usize; 3] = [2, 100, 64];
    /// The shape of the tensor of codes that fits.
    const CODE_SHAPE: &[usize] = &[2, 100, 2, 16];

    fn open(folder: &Path, code_shape: &[usize]) -> (Vec<f32>, ModelFolder) {
        let weights = weights(SHAPE.iter().product());
        let Mxfp4 { blocks, scales } = encode(&weights);
        let tensors: [(&str, &[usize], &[u8]); 3] =
            [("w_blocks", code_shape, &blocks), ("w_scales", &[2, 100, 2], &scales), ("other_blocks", &[1], &[0])];
        (weights, ModelFolder::open_file(&write(folder, &tensors)).unwrap())
    }

    #[test]
    fn codes_and_scales_are_one_tensor() {
        let folder = tempfile::tempdir().unwrap();
        let (weights, checkpoint) = open(folder.path(), CODE_SHAPE);
        assert_eq!((checkpoint.shape("w"), checkpoint.dtype("w")), (Some(SHAPE.to_vec()), Some(DType::MXFP4)));
        let mut names = Weights::names(&checkpoint);
        names.sort();
        assert_eq!(names, ["other_blocks", "w"], "a tensor alone has its own name");
        let rows = checkpoint.rows("w", 0, 200).unwrap();
        assert_eq!(rows.bytes().unwrap(), gguf_blocks(&weights));
        assert_eq!(rows.floats().unwrap(), weights);
        let second = checkpoint.rows("w", 101, 99).unwrap().step_by(2);
        let expected: Vec<f32> = weights[101 * 64..].chunks(128).flat_map(|rows| rows[..64].to_vec()).collect();
        assert_eq!((second.count, second.floats().unwrap()), (50, expected), "every second row of the second matrix");
    }

    #[test]
    fn codes_that_do_not_fit_the_scales_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for shape in [&[2, 100, 32][..], &[2, 50, 4, 16], &[200, 2, 16], &[2, 100, 16, 2]] {
            let (_, checkpoint) = open(folder.path(), shape);
            let error = checkpoint.rows("w", 0, 1).unwrap_err().to_string();
            assert!(error.contains("w_blocks has the shape"), "{error}");
        }
        let (_, checkpoint) = open(folder.path(), &[2, 100, 2, 8]);
        let error = checkpoint.rows("w", 0, 1).unwrap_err().to_string();
        assert!(error.contains("must be U8"), "{error}");
    }
}
