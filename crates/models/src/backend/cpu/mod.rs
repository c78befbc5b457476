//! The CPU, with the kernels of `outpost-kernels`.

mod attention;
mod attention_weights;
mod backend;
mod buffers;
mod conv1d;
mod convolution;
mod device;
mod elementwise;
mod experts;
mod kv_arena;
mod layout;
mod modulation;
mod norms;
mod paged_attention;
mod products;
mod recurrent;

pub use device::Cpu;
