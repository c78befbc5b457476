//! Any device of candle (<https://github.com/huggingface/candle>): CUDA, Metal, or the CPU.
//!
//! Operations only enqueue work on the device; none waits for a result, except for those that return values to the host.
//! Indices that all layers with attention share are uploaded once for each step. candle runs the CPU device with threads of its own:
//! `RAYON_NUM_THREADS` sets their number. Operations of the CPU that need gradients use the kernels of the host instead
//! (`host` and `host_products`).

mod attention;
mod attention_weights;
mod backend;
mod conv1d;
mod convolution;
mod device;
mod elementwise;
mod error;
mod experts;
mod gradient;
mod host;
mod host_array;
mod host_products;
mod kv_arena;
mod kv_batch;
mod kv_groups;
mod kv_plan;
mod kv_writes;
mod layout;
mod norms;
mod paged_attention;
mod products;
mod recurrence;
mod recurrent;
mod rope;
#[cfg(test)]
mod tests;
mod text_attention;
mod text_groups;
mod thread_binding;
mod weights;

pub use device::Candle;
pub(crate) use gradient::with_gradient;
pub use weights::{CandleLinear, is_dequantised};
