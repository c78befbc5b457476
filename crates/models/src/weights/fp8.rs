//! Matrices in FP8 whose scales are tensors of their own. A weight is a number of eight bits times a scale. NAME, `[.., rows, columns]`, has
//! the numbers. `NAME_scale_inv` (DeepSeek, Qwen, Mistral) or `NAME_scale` (llm-compressor, NVIDIA's Model Optimizer) has one scale, or a
//! scale of each matrix, each row or each block. The rest of the code sees one tensor NAME.
//!
//! Published models round activations to FP8, too, because GPUs multiply such numbers. Here activations are not rounded, and their scales
//! are not read.
//!
//! Weights become Q8_0 when they are loaded, which takes 8.5 bits a weight. Rounding normally distributed weights to E4M3 is an error of
//! 2.65 % of their standard deviation, by blocks as well as by rows. Q8_0 of these is off by 2.70 % from the weights, and by 0.55 % from E4M3;
//! bf16, which takes twice the memory, by 2.65 % and 0.17 %. For a t-distribution with
//! five degrees of freedom, whose tails are heavier, Q8_0 is off by 2.73 % and 0.67 %.

use std::fs::File;

use serde_json::Value;

use super::fp8_files::{Fp8Files, Fp8Scales, ScaleGrid, ScaleType};
use super::tensor_rows::check_rows;
use super::{Rows, flat};
use crate::backend::DType;
use crate::error::ModelError;
use crate::safetensors::{FP8_SCALES, Fp8Format, ModelFolder, TensorInfo};

/// The ends of the names of scales of activations and of the KV cache.
const ACTIVATION_SCALES: [&str; 8] =
    ["activation_scale", "input_scale", "output_scale", "q_scale", "k_scale", "v_scale", "kv_scale", "prob_scale"];

/// The end of the name of the projection of latent attention whose parts are transposed when they are loaded. Q8_0 would round blocks of
/// rows, but the transposed matrix has blocks of columns, so the whole tensor becomes bf16.
const TRANSPOSED: &str = ".kv_b_proj.weight";

/// A tensor in FP8.
pub(super) struct Fp8Tensor<'a> {
    numbers: (&'a TensorInfo, &'a File),
    format: Fp8Format,
    scales: Option<(&'a TensorInfo, &'a File)>,
    config: &'a Value,
}

impl ModelFolder {
    /// The tensor of this name, if it is in FP8.
    pub(super) fn fp8_tensor(&self, name: &str) -> Option<Fp8Tensor<'_>> {
        let numbers = self.tensor(name)?;
        let format = numbers.0.fp8()?;
        let scales = FP8_SCALES.iter().find_map(|ending| self.tensor(&format!("{name}{ending}")));
        Some(Fp8Tensor { numbers, format, scales, config: &self.config })
    }

    /// The names of all tensors, except for those that belong to tensors in FP8.
    pub(crate) fn names_without_fp8_scales(&self) -> impl Iterator<Item = &str> {
        let has_fp8 = self.has_fp8();
        self.names().filter(move |name| !(has_fp8 && (self.is_fp8_scale(name) || is_activation_scale(name))))
    }

    fn is_fp8_scale(&self, name: &str) -> bool {
        let is_fp8 = |name: &str| self.tensor(name).is_some_and(|(info, _)| info.fp8().is_some());
        FP8_SCALES.iter().any(|ending| name.strip_suffix(ending).is_some_and(is_fp8))
    }
}

fn is_activation_scale(name: &str) -> bool {
    let is_end = |ending: &&str| name.strip_suffix(*ending).is_some_and(|rest| rest.ends_with(['.', '_']));
    ACTIVATION_SCALES.iter().any(is_end)
}

impl<'a> Fp8Tensor<'a> {
    /// The type in memory: Q8_0, or bf16 if rows are not whole blocks.
    pub fn dtype(&self) -> DType {
        let info = self.numbers.0;
        let is_whole = flat(&info.shape).1.is_multiple_of(DType::Q8_0.block());
        if is_whole && !info.name.ends_with(TRANSPOSED) { DType::Q8_0 } else { DType::BF16 }
    }

    /// `count` rows from `first` on, of the rows of all matrices.
    ///
    /// # Errors
    /// If the scales are missing or do not fit, or there are not as many rows.
    pub fn rows(&self, first: usize, count: usize) -> Result<Rows<'a>, ModelError> {
        let (info, file) = self.numbers;
        let (total, columns) = flat(&info.shape);
        check_rows(&info.name, total, first, count)?;
        let (format, scales) = (self.format, self.scales()?);
        let files = Fp8Files { name: &info.name, numbers: (file, info.start), format, scales, first };
        Ok(Rows::from_fp8(self.dtype(), count, columns, files))
    }

    fn scales(&self) -> Result<Fp8Scales<'a>, ModelError> {
        let TensorInfo { name, dtype, shape, .. } = self.numbers.0;
        let Some((info, file)) = self.scales else {
            let [one, other] = FP8_SCALES;
            return Err(ModelError::Checkpoint(format!(
                "tensor {name} has the type {dtype} and no scale: the files have neither {name}{one} nor {name}{other}. \
                 Download all files of the model again, or use a GGUF file"
            )));
        };
        let kind = ScaleType::of(info).ok_or_else(|| {
            ModelError::Checkpoint(format!(
                "tensor {} has the type {}; scales of FP8 must be F32, F16, BF16 or F8_E8M0",
                info.name, info.dtype
            ))
        })?;
        let grid = ScaleGrid::new(shape, flat(shape), &info.shape, block_sizes(self.config)).ok_or_else(|| {
            ModelError::Checkpoint(format!(
                "tensor {name} has the shape {shape:?}, which does not fit its scales {} of the shape {:?}: there must be one scale, \
                 or one for each matrix, row or block of weight_block_size",
                info.name, info.shape
            ))
        })?;
        Ok(Fp8Scales { file: (file, info.start), kind, grid })
    }
}

/// The sizes of blocks that `quantization_config` names, `[rows, columns]`: `weight_block_size`, and those of groups of modules in the files of
/// llm-compressor.
fn block_sizes(config: &Value) -> impl Iterator<Item = [usize; 2]> {
    let config = config.get("quantization_config");
    let groups = config.and_then(|config| config.get("config_groups")?.as_object());
    let of_groups = groups.into_iter().flat_map(|groups| groups.values()).filter_map(|group| {
        let weights = group.get("weights")?;
        let in_row = || Some([1, positive(weights.get("group_size")?)?]);
        weights.get("block_structure").and_then(pair).or_else(in_row)
    });
    config.and_then(|config| pair(config.get("weight_block_size")?)).into_iter().chain(of_groups)
}

fn positive(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|number| usize::try_from(number).ok()).filter(|number| *number > 0)
}

fn pair(value: &Value) -> Option<[usize; 2]> {
    match value.as_array()?.as_slice() {
        [rows, columns] => Some([positive(rows)?, positive(columns)?]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use half::{bf16, f16};
    use outpost_testing::rng::TestRng;
    use serde_json::{Map, json};

    use super::*;
    use crate::backend::{Backend, Cpu};
    use crate::weights::{Footprint, Weights};

    /// Name, type, shape and bytes.
    type Tensor<'a> = (&'a str, &'a str, &'a [usize], Vec<u8>);
    /// The shapes of a tensor and of its scales, the configuration, and the size of blocks.
    type ScaleCase = (&'static [usize], &'static [usize], Value, [usize; 2]);

    fn open(folder: &Path, tensors: &[Tensor<'_>], quantization: Value) -> Result<ModelFolder, ModelError> {
        let (mut header, mut data) = (Map::new(), Vec::new());
        for (name, dtype, shape, bytes) in tensors {
            let offsets = [data.len(), data.len() + bytes.len()];
            header.insert((*name).to_owned(), json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
            data.extend_from_slice(bytes);
        }
        let header = Value::Object(header).to_string();
        let path = folder.join("model.safetensors");
        std::fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()).unwrap();
        let config = json!({"quantization_config": quantization});
        let mut folder = ModelFolder::open_file(&path)?;
        folder.config = config;
        Ok(folder)
    }

    /// Codes without those that are not numbers.
    fn codes(count: usize) -> Vec<u8> {
        let mut rng = TestRng(7);
        (0..count).map(|_| (rng.below(127) + 128 * rng.below(2)) as u8).collect()
    }

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    /// The weights of a tensor whose scales are those of blocks of this size.
    fn product(codes: &[u8], shape: &[usize], scales: &[f32], block: [usize; 2]) -> Vec<f32> {
        let (numbers, [rows, columns]) = (Fp8Format::E4M3.numbers(), [shape[shape.len() - 2], shape[shape.len() - 1]]);
        let [down, across] = [rows.div_ceil(block[0]), columns.div_ceil(block[1])];
        let scale = |index: usize| {
            let (row, column) = (index / columns, index % columns);
            scales[(row / rows * down + row % rows / block[0]) * across + column / block[1]]
        };
        codes.iter().enumerate().map(|(index, code)| numbers[usize::from(*code)] * scale(index)).collect()
    }

    #[test]
    fn scales_of_tensors_rows_and_blocks_are_read() {
        let groups = json!({"config_groups": {"group_0": {"weights": {"group_size": 32}}}});
        let structure = json!({"config_groups": {"group_0": {"weights": {"block_structure": [48, 40]}}}});
        let blocks = |rows: usize, columns: usize| json!({"weight_block_size": [rows, columns]});
        let cases: [ScaleCase; 11] = [
            (&[100, 64], &[], Value::Null, [100, 64]),
            (&[100, 64], &[1], blocks(128, 128), [100, 64]),
            (&[100, 64], &[100, 1], Value::Null, [1, 64]),
            (&[100, 64], &[100], Value::Null, [1, 64]),
            (&[100, 64], &[100, 2], groups, [1, 32]),
            // The last blocks are smaller, also where blocks of the same size would fit.
            (&[100, 72], &[4, 3], blocks(32, 28), [32, 28]),
            (&[100, 64], &[2, 2], blocks(64, 48), [64, 48]),
            (&[100, 64], &[3, 2], structure, [48, 40]),
            // Experts.
            (&[2, 50, 64], &[2, 2, 4], blocks(32, 16), [32, 16]),
            (&[2, 50, 64], &[2, 1, 1], Value::Null, [50, 64]),
            // An expert's gate and up projections have scales of their own.
            (&[2, 50, 64], &[2, 2, 1], blocks(128, 128), [25, 64]),
        ];
        for (shape, scale_shape, config, block) in cases {
            let dir = tempfile::tempdir().unwrap();
            let (codes, count): (_, usize) = (codes(shape.iter().product()), scale_shape.iter().product());
            let scales: Vec<f32> = (0..count).map(|index| 0.01 + index as f32 * 0.003).collect();
            let expected = product(&codes, shape, &scales, block);
            let tensors: [Tensor<'_>; 2] =
                [("w", "F8_E4M3", shape, codes), ("w_scale_inv", "F32", scale_shape, floats(&scales))];
            let checkpoint = open(dir.path(), &tensors, config).unwrap();
            assert_eq!(Weights::names(&checkpoint), ["w"]);
            let rows = |first, count| checkpoint.rows("w", first, count).unwrap();
            let columns = shape[shape.len() - 1];
            assert_eq!(rows(0, 100).stored_floats().unwrap(), expected, "{shape:?} {scale_shape:?}");
            assert_eq!(rows(37, 41).stored_floats().unwrap(), expected[37 * columns..78 * columns]);
            let second: Vec<f32> = expected[37 * columns..78 * columns]
                .chunks(2 * columns)
                .flat_map(|rows| &rows[..columns])
                .copied()
                .collect();
            assert_eq!(rows(37, 41).step_by(2).stored_floats().unwrap(), second, "every second row");

            let dtype = if columns == 64 { DType::Q8_0 } else { DType::BF16 };
            assert_eq!((checkpoint.dtype("w"), rows(0, 100).dtype), (Some(dtype), dtype));
            let width = if dtype == DType::Q8_0 { 32 } else { 1 };
            for (found, exact) in rows(0, 100).floats().unwrap().chunks(width).zip(expected.chunks(width)) {
                let largest = exact.iter().fold(0f32, |largest, weight| largest.max(weight.abs()));
                let error = found.iter().zip(exact).map(|(a, b)| (a - b).abs()).fold(0., f32::max);
                assert!(error <= largest / 250., "{shape:?}: an error of {error} of {largest}");
            }
        }
    }

    #[test]
    fn scales_have_several_types() {
        let half = [
            ("F32", floats(&[0.5])),
            ("F16", f16::from_f32(0.5).to_le_bytes().to_vec()),
            ("BF16", bf16::from_f32(0.5).to_le_bytes().to_vec()),
            ("F8_E8M0", vec![126]),
        ];
        for (kind, format) in [("F8_E4M3", Fp8Format::E4M3), ("F8_E5M2", Fp8Format::E5M2)] {
            for (dtype, scale) in &half {
                let dir = tempfile::tempdir().unwrap();
                let codes: Vec<u8> = (0..64).chain(128..192).collect();
                let expected: Vec<f32> = codes.iter().map(|code| format.numbers()[usize::from(*code)] * 0.5).collect();
                let tensors: [Tensor<'_>; 2] = [("w", kind, &[2, 64], codes), ("w_scale", dtype, &[], scale.clone())];
                let checkpoint = open(dir.path(), &tensors, Value::Null).unwrap();
                assert_eq!(checkpoint.rows("w", 0, 2).unwrap().stored_floats().unwrap(), expected, "{kind} {dtype}");
            }
        }
    }

    #[test]
    fn weights_that_are_not_finite_are_an_error() {
        let nan = {
            let mut codes = codes(64 * 64);
            codes[70] = 0xff;
            codes
        };
        for (codes, scale) in [(nan, 1.), (codes(64 * 64), f32::NAN), (codes(64 * 64), f32::INFINITY)] {
            let dir = tempfile::tempdir().unwrap();
            let tensors: [Tensor<'_>; 2] =
                [("w", "F8_E4M3", &[64, 64], codes), ("w_scale", "F32", &[], floats(&[scale]))];
            let checkpoint = open(dir.path(), &tensors, Value::Null).unwrap();
            let rows = checkpoint.rows("w", 0, 64).unwrap();
            for error in [rows.bytes().unwrap_err(), rows.stored_floats().unwrap_err()] {
                assert_eq!(error.to_string(), "tensor w has values that are not finite");
            }
        }
    }

    #[test]
    fn scales_that_are_missing_or_do_not_fit_are_refused() {
        let blocks = json!({"weight_block_size": [64, 48]});
        let cases: [(&str, &str, &[usize], &str); 6] = [
            (
                "other_scale",
                "F32",
                &[1],
                "has the type F8_E4M3 and no scale: the files have neither w_scale_inv nor w_scale",
            ),
            ("w_scale", "U8", &[100, 2], "tensor w_scale has the type U8; scales of FP8 must be"),
            ("w_scale", "F32", &[3, 2], "does not fit its scales w_scale of the shape [3, 2]"),
            ("w_scale", "F32", &[2, 100, 1], "does not fit its scales w_scale"),
            ("w_scale", "F32", &[0], "does not fit its scales w_scale"),
            ("w_scale", "F32", &[64], "does not fit its scales w_scale"),
        ];
        for (name, dtype, shape, words) in cases {
            let dir = tempfile::tempdir().unwrap();
            let size = if dtype == "U8" { 1 } else { 4 };
            let scales = vec![0; shape.iter().product::<usize>() * size];
            let tensors: [Tensor<'_>; 2] = [("w", "F8_E4M3", &[100, 64], codes(6400)), (name, dtype, shape, scales)];
            let checkpoint = open(dir.path(), &tensors, blocks.clone()).unwrap();
            let error = checkpoint.rows("w", 0, 1).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let dir = tempfile::tempdir().unwrap();
        let error = open(dir.path(), &[("w", "F8_E4M3", &[100, 64], codes(6399))], blocks).unwrap_err().to_string();
        assert!(error.contains("tensor w has 6399 bytes, which do not match its shape"), "{error}");
    }

    #[test]
    fn only_scales_of_weights_in_fp8_and_of_activations_are_left_out() {
        let scale = |name: &'static str| -> Tensor<'static> { (name, "F32", &[1], floats(&[1.])) };
        let tensors: [Tensor<'_>; 11] = [
            ("a.weight", "F8_E4M3", &[1, 32], codes(32)),
            scale("a.weight_scale"),
            scale("a.input_scale"),
            ("e.gate_up_proj", "F8_E4M3", &[1, 2, 32], codes(64)),
            scale("e.gate_up_proj_scale_inv"),
            scale("e.gate_up_proj_activation_scale"),
            scale("attn.k_scale"),
            scale("attn.v_scale"),
            scale("b.weight"),
            scale("b.weight_scale"),
            scale("router.scale"),
        ];
        let names = |tensors: &[Tensor<'_>]| {
            let dir = tempfile::tempdir().unwrap();
            let mut names = Weights::names(&open(dir.path(), tensors, Value::Null).unwrap());
            names.sort();
            names
        };
        assert_eq!(names(&tensors), ["a.weight", "b.weight", "b.weight_scale", "e.gate_up_proj", "router.scale"]);
        assert_eq!(names(&tensors[6..8]), ["attn.k_scale", "attn.v_scale"], "nothing is in FP8");
    }

    #[test]
    fn memory_is_that_of_the_type_that_weights_become() {
        let cpu = Cpu::new(1);
        for (name, columns, dtype) in [
            ("q_proj.weight", 64, DType::Q8_0),
            ("q_proj.weight", 48, DType::BF16),
            ("self_attn.kv_b_proj.weight", 64, DType::BF16),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let scale = format!("{name}_scale_inv");
            let tensors: [Tensor<'_>; 2] =
                [(name, "F8_E4M3", &[96, columns], codes(96 * columns)), (&scale, "F32", &[96, 1], floats(&[1.; 96]))];
            let checkpoint = open(dir.path(), &tensors, Value::Null).unwrap();
            assert_eq!(checkpoint.dtype(name), Some(dtype));
            let expected = Footprint {
                weights: cpu.linear_bytes(dtype, 96, columns) as u64,
                loading: cpu.loading_bytes(dtype, 96, columns) as u64,
            };
            assert_eq!(Footprint::new(&checkpoint, &cpu), expected);
        }
    }
}
