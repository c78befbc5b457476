//! The `ggml-*.bin` files of whisper.cpp: sizes, mel filters, the vocabulary, and tensors, one after the other
//! (<https://github.com/ggml-org/whisper.cpp/blob/master/models/convert-pt-to-ggml.py>).
//!
//! Files are untrusted input. Every count is checked against its limit and the file's size before it is used.

mod file;
mod reader;
mod tensor;
#[cfg(test)]
mod tests;

pub use file::GgmlFile;
