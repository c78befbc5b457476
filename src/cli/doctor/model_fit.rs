//! Which well-known models fit into the memory of this machine, and how quickly they would generate.

use std::io::Write;

use serde::Serialize;

use super::super::output::Outcome;
use super::machine;
use super::product_speed::ProductSpeeds;
use crate::display::format_bytes;
use crate::engine;
use crate::models::backend::{DType, Recurrent};
use crate::models::decoder_config::DecoderSizes;
use crate::models::dense_decoder::{DenseDecoder, Quantization};
use crate::models::devices::Selected;
use crate::models::kv::KvType;

const QUANTIZATIONS: [(&str, Quantization); 3] =
    [("Q4_K_M", Quantization::Q4KM), ("Q8_0", Quantization::Q8), ("F16", Quantization::F16)];
/// Tokens of context.
const CONTEXTS: [usize; 2] = [4096, 32_768];
/// Above this share of the CPU that other programs use, measured speeds are too low.
const BUSY: f64 = 0.25;
/// Seconds that a step takes for each layer beside its products.
const SECONDS_PER_LAYER: f64 = 30e-6;

/// A well-known model.
struct KnownModel {
    name: &'static str,
    /// Layers, width, inner width, heads, heads of keys and values, width of a head, vocabulary.
    sizes: [usize; 7],
    tied_embeddings: bool,
}

/// Sizes from the models' `config.json`.
const MODELS: [KnownModel; 9] = [
    KnownModel { name: "Qwen3 0.6B", sizes: [28, 1024, 3072, 16, 8, 128, 151_936], tied_embeddings: true },
    KnownModel { name: "Llama 3.2 1B", sizes: [16, 2048, 8192, 32, 8, 64, 128_256], tied_embeddings: true },
    KnownModel { name: "Llama 3.2 3B", sizes: [28, 3072, 8192, 24, 8, 128, 128_256], tied_embeddings: true },
    KnownModel { name: "Qwen3 4B", sizes: [36, 2560, 9728, 32, 8, 128, 151_936], tied_embeddings: true },
    KnownModel { name: "Llama 3.1 8B", sizes: [32, 4096, 14_336, 32, 8, 128, 128_256], tied_embeddings: false },
    KnownModel { name: "Qwen2.5 14B", sizes: [48, 5120, 13_824, 40, 8, 128, 152_064], tied_embeddings: false },
    KnownModel { name: "Mistral Small 24B", sizes: [40, 5120, 32_768, 32, 8, 128, 131_072], tied_embeddings: false },
    KnownModel { name: "Qwen2.5 32B", sizes: [64, 5120, 27_648, 40, 8, 128, 152_064], tied_embeddings: false },
    KnownModel { name: "Llama 3.3 70B", sizes: [80, 8192, 28_672, 64, 8, 128, 128_256], tied_embeddings: false },
];

/// What a model needs with one quantization and one length of context.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ModelFit {
    model: &'static str,
    quantization: &'static str,
    context: usize,
    memory_bytes: u64,
    fits: bool,
    /// Of one request, at half the context. `None` if speeds were not measured.
    tokens_per_second: Option<f64>,
}

impl KnownModel {
    fn decoder(&self, quantization: Quantization) -> DenseDecoder {
        let [layers, width, inner, heads, kv_heads, head_width, vocabulary] = self.sizes;
        let sizes = DecoderSizes { layers, width, inner, heads, kv_heads, head_width, vocabulary };
        DenseDecoder { sizes, tied_embeddings: self.tied_embeddings, quantization }
    }
}

/// A row for each model, quantization and context. The needs are those that the server reserves with these settings on this
/// backend.
pub(super) fn table<B: Recurrent>(
    settings: &engine::Settings,
    backend: &B,
    speeds: Option<&ProductSpeeds>,
) -> Vec<ModelFit> {
    let limits = settings.step_limits();
    let mut table = Vec::new();
    for known in &MODELS {
        for (name, quantization) in QUANTIZATIONS {
            let decoder = known.decoder(quantization);
            for context in CONTEXTS {
                let memory_bytes = decoder.memory(context, KvType::F16, &limits, backend).total();
                table.push(ModelFit {
                    model: known.name,
                    quantization: name,
                    context,
                    memory_bytes,
                    fits: memory_bytes <= settings.memory_bytes,
                    tokens_per_second: speeds.map(|speeds| tokens_per_second(&decoder, context / 2, speeds, backend)),
                });
            }
        }
    }
    table
}

/// The predicted speed of one request with this many tokens in its context.
fn tokens_per_second<B: Recurrent>(
    decoder: &DenseDecoder,
    positions: usize,
    speeds: &ProductSpeeds,
    backend: &B,
) -> f64 {
    let weights = decoder.bytes_read_per_token(backend);
    let products: f64 = weights.into_iter().map(|(dtype, bytes)| speeds.seconds(dtype, bytes)).sum();
    let attention = speeds.seconds(DType::F16, decoder.kv_bytes(positions, KvType::F16));
    (products + attention + SECONDS_PER_LAYER * decoder.sizes.layers as f64).recip()
}

/// Prints the table of [`table`]. Without speeds, the memory stands in their place.
pub(super) fn print(table: &[ModelFit], settings: &engine::Settings, has_speeds: bool, out: &mut dyn Write) -> Outcome {
    let device = &settings.devices.usual;
    let place = match device {
        Selected::Gpu(gpu) => format!(" of {} ({})", gpu.choice, gpu.name),
        Selected::Cpu { .. } | Selected::Candle => String::new(),
    };
    let shown = if has_speeds { "tokens per second of one request, predicted" } else { "memory" };
    writeln!(
        out,
        "Models that fit into {}{place} ({shown}; '-' does not fit), by tokens of context:\n",
        format_bytes(settings.memory_bytes)
    )?;
    let name_width = MODELS.iter().map(|known| known.name.len()).max().unwrap_or_default();
    let columns = QUANTIZATIONS.len() * CONTEXTS.len();
    let quantizations: String = QUANTIZATIONS.iter().map(|(name, _)| format!("  {name:<16}")).collect();
    writeln!(out, "{:name_width$}{}", "", quantizations.trim_end())?;
    let contexts: String = CONTEXTS.iter().map(|context| format!("{:>8}k", context / 1024)).collect();
    writeln!(out, "{:name_width$}{}", "", contexts.repeat(QUANTIZATIONS.len()))?;
    for rows in table.chunks(columns) {
        let name = rows.first().map_or("", |row| row.model);
        let cells: String = rows.iter().map(|row| format!("{:>9}", cell(row))).collect();
        writeln!(out, "{name:name_width$}{cells}")?;
    }
    if let Selected::Gpu(_) = device {
        writeln!(out, "\nThe speed on a GPU is not predicted. 'outpost bench MODEL' measures an installed model.")?;
    }
    if has_speeds && machine::load() > BUSY {
        writeln!(
            out,
            "\nOther programs used {:.0} % of the CPU in the last minute. On an idle machine, models are faster.",
            machine::load().min(1.) * 100.
        )?;
    }
    Ok(())
}

fn cell(row: &ModelFit) -> String {
    match (row.fits, row.tokens_per_second) {
        (false, _) => "-".to_owned(),
        (true, Some(speed)) if speed < 10. => format!("{speed:.1}"),
        (true, Some(speed)) => format!("{speed:.0}"),
        (true, None) => format_bytes(row.memory_bytes),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::product_speed::ProductSpeeds;
    use super::{MODELS, ModelFit};
    use crate::device_choice::DeviceChoice;
    use crate::engine::{Devices, Settings};
    use crate::models::backend::{Cpu, DType};
    use crate::models::devices::{Gpu, Selected};

    fn table(memory: u64, speeds: Option<&ProductSpeeds>) -> Vec<ModelFit> {
        super::table(&Settings::new(PathBuf::new(), memory), &Cpu::new(2), speeds)
    }

    #[test]
    fn more_memory_fits_more_models_and_smaller_ones_are_faster() {
        let speeds =
            ProductSpeeds::of(&[(DType::Q4K, 2e10), (DType::Q6K, 2e10), (DType::Q8_0, 2e10), (DType::F16, 2e10)]);
        let small = table(8_000_000_000, Some(&speeds));
        let large = table(64_000_000_000, Some(&speeds));
        assert_eq!(small.len(), MODELS.len() * 6);
        let fitting = |table: &[ModelFit]| table.iter().filter(|row| row.fits).count();
        assert!(fitting(&small) > 6 && fitting(&small) < fitting(&large) && fitting(&large) < large.len());
        for (row, other) in small.iter().zip(&large) {
            assert_eq!(row.memory_bytes, other.memory_bytes);
        }
        let of = |model: &str| -> Vec<f64> {
            small.iter().filter(|row| row.model == model).map(|row| row.tokens_per_second.unwrap()).collect()
        };
        for (small, large) in of("Llama 3.2 1B").into_iter().zip(of("Llama 3.1 8B")) {
            assert!(small > 3. * large, "{small} {large}");
        }
        let speeds = of("Llama 3.1 8B");
        assert!(speeds[0] > speeds[1] && speeds[0] > speeds[2] && speeds[2] > speeds[4], "{speeds:?}");
    }

    #[test]
    fn without_speeds_the_memory_is_printed() {
        let text = |device: &Selected| {
            let mut out = Vec::new();
            let devices = Devices { usual: device.clone(), ..Devices::default() };
            let settings = Settings { devices, ..Settings::new(PathBuf::new(), 8_000_000_000) };
            super::print(&table(8_000_000_000, None), &settings, false, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let printed = text(&Selected::default());
        let lines: Vec<&str> = printed.lines().collect();
        assert_eq!(lines.len(), 4 + MODELS.len(), "{printed}");
        assert!(lines[8].starts_with("Llama 3.1 8B") && lines[8].trim_end().ends_with('-'), "{printed}");
        let (choice, name) = (DeviceChoice::Cuda(0), "NVIDIA L4".to_owned());
        let gpu = Selected::Gpu(Gpu { choice, name, total_memory: 24 << 30, free_memory: 23 << 30 });
        let printed = text(&gpu);
        assert!(printed.starts_with("Models that fit into 8.0 GB of cuda:0 (NVIDIA L4) (memory"), "{printed}");
        assert!(printed.contains("outpost bench MODEL"), "{printed}");
    }
}
