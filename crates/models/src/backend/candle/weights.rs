//! Weights on the device.
//!
//! Quantised weights stay quantised, except for the types that candle lacks. The CPU multiplies dense matrices in f32;
//! other devices in the type of the checkpoint.

use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{DType as ArrayType, Device, Tensor as Array};
use half::{bf16, f16};

use crate::backend::embedding_table::EmbeddingTable;
use crate::backend::interface::Matrix;
use crate::backend::types::{Conv1dShape, ConvShape, DType, dequantise};
use crate::error::{ModelError, Result};
use crate::weights::Rows;

/// Elements that are dequantised at once.
const CHUNK_ELEMENTS: usize = 4 << 20;

/// A weight matrix, `[rows, columns]`.
#[derive(Clone, Debug)]
pub(super) enum Weight {
    Quantised(Arc<QTensor>),
    Dense(Array),
    /// A matrix that gets a gradient: f32.
    Trained(Array),
}

/// A weight matrix with an optional bias.
#[derive(Debug)]
pub struct CandleLinear {
    rows: usize,
    columns: usize,
    pub(super) weight: Weight,
    /// `[rows]`
    pub(super) bias: Option<Array>,
    /// The rows of a quantised matrix in the memory of the host, for embeddings. Dense matrices, and those of the CPU,
    /// need no copy.
    pub(super) host_rows: Option<EmbeddingTable>,
    /// The type in the checkpoint.
    pub(super) dtype: DType,
    /// The index of the module of an adapter in training that a down-projection belongs to.
    pub(super) module: Option<usize>,
}

/// The weights of a convolution with an optional bias.
#[derive(Debug)]
pub struct CandleConv {
    pub(super) shape: ConvShape,
    pub(super) kernel: Kernel,
}

/// The weights of a convolution over time with an optional bias.
#[derive(Debug)]
pub struct CandleConv1d {
    pub(super) shape: Conv1dShape,
    /// `[outputs, inputs, kernel]`
    pub(super) kernel: Array,
    /// `[outputs]`
    pub(super) bias: Option<Array>,
}

#[derive(Debug)]
pub(super) enum Kernel {
    /// A 1 × 1 convolution of each pixel.
    Pointwise(CandleLinear),
    /// `[outputs, inputs, height, width]`, and a bias: `[outputs]`.
    Window(Array, Option<Array>),
}

impl CandleLinear {
    /// A matrix that gets a gradient: `[rows, columns]`, f32.
    pub fn trained(matrix: Array) -> Result<Self> {
        let (rows, columns) = matrix.dims2()?;
        let weight = Weight::Trained(matrix);
        Ok(Self { rows, columns, weight, bias: None, host_rows: None, dtype: DType::F32, module: None })
    }

    /// The down-projection of a module with this index. Dropout applies to its input.
    pub fn trained_down(matrix: Array, module: usize) -> Result<Self> {
        Ok(Self { module: Some(module), ..Self::trained(matrix)? })
    }
}

impl Matrix for CandleLinear {
    fn rows(&self) -> usize {
        self.rows
    }

    fn columns(&self) -> usize {
        self.columns
    }
}

/// The type of candle that stores a quantised type, if there is one.
fn quantised_type(dtype: DType) -> Option<GgmlDType> {
    Some(match dtype {
        DType::Q8_0 => GgmlDType::Q8_0,
        DType::Q4_0 => GgmlDType::Q4_0,
        DType::Q4_1 => GgmlDType::Q4_1,
        DType::Q5_0 => GgmlDType::Q5_0,
        DType::Q5_1 => GgmlDType::Q5_1,
        DType::Q2K => GgmlDType::Q2K,
        DType::Q3K => GgmlDType::Q3K,
        DType::Q4K => GgmlDType::Q4K,
        DType::Q5K => GgmlDType::Q5K,
        DType::Q6K => GgmlDType::Q6K,
        DType::F32 | DType::F16 | DType::BF16 | DType::IQ4NL | DType::IQ4XS | DType::MXFP4 => return None,
    })
}

/// True for types that candle cannot multiply. They are dequantised when they are loaded: to f32 on the CPU, and to
/// [`dense_type`] on other devices.
pub fn is_dequantised(dtype: DType) -> bool {
    dtype.is_quantised() && quantised_type(dtype).is_none()
}

/// The type of candle that keeps a matrix quantised.
fn kept_type(dtype: DType, columns: usize) -> Option<GgmlDType> {
    quantised_type(dtype).filter(|kept| columns.is_multiple_of(kept.block_size()))
}

/// The element type of a dense matrix. bf16 holds every weight of MXFP4, f16 not the smallest and largest.
fn dense_type(device: &Device, dtype: DType) -> ArrayType {
    match dtype {
        DType::F32 => ArrayType::F32,
        _ if device.is_cpu() => ArrayType::F32,
        DType::BF16 | DType::MXFP4 => ArrayType::BF16,
        _ => ArrayType::F16,
    }
}

pub fn read_linear(device: &Device, weight: &Rows<'_>, bias: Option<&[f32]>, embedding: bool) -> Result<CandleLinear> {
    let Rows { dtype, count: rows, columns, .. } = *weight;
    if rows == 0 || columns == 0 {
        return Err(ModelError::Checkpoint(format!("no matrix has the shape [{rows}, {columns}]")));
    }
    let bias = upload_bias(device, bias, rows)?;
    let Some(kept) = kept_type(dtype, columns) else {
        let weight = Weight::Dense(read_dense(device, weight, &[rows, columns])?);
        return Ok(CandleLinear { rows, columns, weight, bias, host_rows: None, dtype, module: None });
    };
    let bytes = weight.bytes()?;
    let storage = QStorage::from_data(bytes.as_slice().into(), device, kept)?;
    let on_device = Weight::Quantised(Arc::new(QTensor::new(storage, (rows, columns))?));
    let host_rows = (embedding && !device.is_cpu()).then(|| EmbeddingTable::new(weight)).transpose()?;
    Ok(CandleLinear { rows, columns, weight: on_device, bias, host_rows, dtype, module: None })
}

pub fn read_conv(device: &Device, weight: &Rows<'_>, shape: ConvShape, bias: Option<&[f32]>) -> Result<CandleConv> {
    let ConvShape { inputs, outputs, kernel: [height, width], stride, padding } = shape;
    let elements = outputs * inputs * height * width;
    if weight.dtype.is_quantised() || elements == 0 || stride == 0 || weight.count * weight.columns != elements {
        return Err(ModelError::Checkpoint(format!("weights of type {:?} do not fit {shape:?}", weight.dtype)));
    }
    let bias = upload_bias(device, bias, outputs)?;
    let kernel = match (height, width, stride, padding) {
        (1, 1, 1, [0, 0]) => {
            let weights = Weight::Dense(read_dense(device, weight, &[outputs, inputs])?);
            let (rows, columns, dtype) = (outputs, inputs, weight.dtype);
            Kernel::Pointwise(CandleLinear {
                rows,
                columns,
                weight: weights,
                bias,
                host_rows: None,
                dtype,
                module: None,
            })
        }
        _ => Kernel::Window(read_dense(device, weight, &[outputs, inputs, height, width])?, bias),
    };
    Ok(CandleConv { shape, kernel })
}

pub fn read_conv1d(
    device: &Device,
    weight: &Rows<'_>,
    shape: Conv1dShape,
    bias: Option<&[f32]>,
) -> Result<CandleConv1d> {
    let Conv1dShape { inputs, outputs, kernel, stride, dilation, .. } = shape;
    let elements = outputs * inputs * kernel;
    let is_valid = elements > 0 && stride > 0 && dilation > 0 && !weight.dtype.is_quantised();
    if !is_valid || weight.count * weight.columns != elements {
        return Err(ModelError::Checkpoint(format!("weights of type {:?} do not fit {shape:?}", weight.dtype)));
    }
    let kernel = read_dense(device, weight, &[outputs, inputs, kernel])?;
    Ok(CandleConv1d { shape, kernel, bias: upload_bias(device, bias, outputs)? })
}

fn upload_bias(device: &Device, bias: Option<&[f32]>, rows: usize) -> Result<Option<Array>> {
    match bias {
        Some(bias) if bias.len() != rows => {
            Err(ModelError::Checkpoint(format!("expected a bias of {rows} elements, found {}", bias.len())))
        }
        Some(bias) => Ok(Some(Array::from_slice(bias, rows, device)?)),
        None => Ok(None),
    }
}

/// Reads a dense tensor in the type of [`dense_type`].
fn read_dense(device: &Device, weight: &Rows<'_>, shape: &[usize]) -> Result<Array> {
    Ok(match (dense_type(device, weight.dtype), weight.dtype) {
        (ArrayType::BF16, DType::BF16) => {
            let values: Vec<bf16> = weight.bytes()?.as_chunks().0.iter().copied().map(bf16::from_le_bytes).collect();
            Array::from_vec(values, shape, device)?
        }
        (ArrayType::F16, DType::F16) => {
            let values: Vec<f16> = weight.bytes()?.as_chunks().0.iter().copied().map(f16::from_le_bytes).collect();
            Array::from_vec(values, shape, device)?
        }
        (ArrayType::BF16, _) => Array::from_vec(dequantised(weight, bf16::from_f32)?, shape, device)?,
        (ArrayType::F16, _) => Array::from_vec(dequantised(weight, f16::from_f32)?, shape, device)?,
        _ => Array::from_vec(dequantised(weight, |value| value)?, shape, device)?,
    })
}

/// Dequantises all rows, some at a time.
fn dequantised<T>(weight: &Rows<'_>, convert: impl Fn(f32) -> T) -> Result<Vec<T>> {
    let Rows { dtype, count, columns, .. } = *weight;
    let row_bytes = columns / dtype.block() * dtype.block_bytes();
    let chunk = (CHUNK_ELEMENTS / columns.max(1)).clamp(1, count.max(1));
    let (mut bytes, mut floats) = (vec![0; chunk * row_bytes], vec![0.; chunk * columns]);
    let mut values = Vec::with_capacity(count * columns);
    for first in (0..count).step_by(chunk) {
        let rows = chunk.min(count - first);
        let (bytes, floats) = (&mut bytes[..rows * row_bytes], &mut floats[..rows * columns]);
        weight.read(first, bytes)?;
        dequantise(dtype, bytes, floats);
        values.extend(floats.iter().map(|value| convert(*value)));
    }
    Ok(values)
}

impl Weight {
    /// `x Wᵀ` for `x`: `[rows, columns]`, f32, without a gradient.
    pub fn product(&self, x: &Array) -> candle_core::Result<Array> {
        match self {
            Self::Quantised(weight) => x.apply_op1_no_bwd(weight.as_ref()),
            Self::Dense(weight) | Self::Trained(weight) => {
                x.to_dtype(weight.dtype())?.matmul(&weight.t()?)?.to_dtype(ArrayType::F32)
            }
        }
    }

    /// The matrix in f32: `[rows, columns]`.
    pub fn to_f32(&self) -> candle_core::Result<Array> {
        match self {
            Self::Quantised(weight) => weight.dequantize(&weight.device()),
            Self::Dense(weight) | Self::Trained(weight) => weight.to_dtype(ArrayType::F32),
        }
    }
}

/// Bytes of a matrix on the device.
pub fn linear_bytes(device: &Device, dtype: DType, rows: usize, columns: usize) -> usize {
    let Some(kept) = kept_type(dtype, columns) else {
        return rows * columns * dense_type(device, dtype).size_in_bytes();
    };
    let bytes = rows * columns / kept.block_size() * kept.type_size();
    match device.is_cpu() {
        true => bytes + repacked_bytes(kept, rows, columns),
        // CUDA pads a matrix by 512 elements.
        false => bytes + 512 / kept.block_size() * kept.type_size(),
    }
}

/// Bytes of the copy that candle makes of a matrix on the CPU at its first product: interleaved rows for vector
/// instructions.
fn repacked_bytes(kept: GgmlDType, rows: usize, columns: usize) -> usize {
    let elements = rows * columns;
    if cfg!(not(target_arch = "x86_64")) {
        // The copy has the size of the matrix.
        return elements / kept.block_size() * kept.type_size();
    }
    if !rows.is_multiple_of(16) || !columns.is_multiple_of(256) {
        return 0;
    }
    // 16 rows of a block have 4-bit or 8-bit codes, and unpacked scales.
    match kept {
        GgmlDType::Q4K => elements / 4096 * (2048 + 16 * 16 * 4),
        GgmlDType::Q6K => elements / 4096 * (4096 + 16 * 16 * 4),
        GgmlDType::Q8_0 => elements / 512 * (512 + 16 * 2),
        _ => 0,
    }
}

/// Temporary bytes of reading a matrix: its bytes in the file, and a copy in the type of the device.
pub fn loading_bytes(device: &Device, dtype: DType, rows: usize, columns: usize) -> usize {
    let file_bytes = |rows: usize| rows * columns / dtype.block() * dtype.block_bytes();
    let dense = dense_type(device, dtype);
    match kept_type(dtype, columns) {
        Some(_) => file_bytes(rows),
        None if dense != ArrayType::F32 && !dtype.is_quantised() => {
            file_bytes(rows) + rows * columns * dense.size_in_bytes()
        }
        None => {
            let chunk = (CHUNK_ELEMENTS / columns.max(1)).clamp(1, rows.max(1));
            let copy = if device.is_cpu() { 0 } else { rows * columns * dense.size_in_bytes() };
            file_bytes(chunk) + chunk * columns * size_of::<f32>() + copy
        }
    }
}

pub fn conv_bytes(device: &Device, dtype: DType, shape: &ConvShape) -> usize {
    let ConvShape { inputs, outputs, kernel: [height, width], .. } = *shape;
    outputs * inputs * height * width * dense_type(device, dtype).size_in_bytes()
}

pub fn conv1d_bytes(device: &Device, dtype: DType, shape: &Conv1dShape) -> usize {
    let Conv1dShape { inputs, outputs, kernel, .. } = *shape;
    outputs * inputs * kernel * dense_type(device, dtype).size_in_bytes()
}
