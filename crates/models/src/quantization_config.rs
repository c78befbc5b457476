//! The `quantization_config` of a `config.json`: which formats of weights are supported.
//!
//! The scales of weights in FP8 are found by the names of their tensors (`weights::fp8`). This module rejects formats that are not
//! supported, so that the error names the format and not a tensor.

use serde_json::Value;

use crate::config_json::ConfigJson;
use crate::error::{Result, reject_config};

const KEY: &str = "quantization_config";
/// Formats of llm-compressor that store each weight as one unpacked number.
const PLAIN_FORMATS: [&str; 2] = ["float-quantized", "naive-quantized"];
/// Algorithms of NVIDIA's Model Optimizer that store weights in FP8, with one scale or one for each row.
const FP8_ALGORITHMS: [&str; 2] = ["FP8", "FP8_PER_CHANNEL_PER_TOKEN"];

/// Rejects a decoder whose weights have an unsupported format. `mxfp4`: experts may have that type.
pub fn check_decoder(config: &ConfigJson<'_>, mxfp4: bool) -> Result<()> {
    let Some(found) = config.object(KEY, "quantization_config.")? else { return Ok(()) };
    let method = method(&found)?;
    let unsupported = match method {
        "fp8" | "fbgemm_fp8" => None,
        // Only experts have this type, which says what it is by the names of its tensors.
        "mxfp4" if mxfp4 => None,
        "compressed-tensors" => compressed_format(&found)?.map(|format| format!("{method} as {format}")),
        "modelopt" => match found.text("quant_algo")? {
            Some(algorithm) if FP8_ALGORITHMS.iter().any(|known| known.eq_ignore_ascii_case(algorithm)) => None,
            algorithm => Some(format!("{method} as {}", algorithm.unwrap_or("an unknown algorithm"))),
        },
        _ => Some(method.to_owned()),
    };
    match unsupported {
        None => Ok(()),
        Some(format) => reject_config(format!(
            "weights quantised by {format} are not supported in safetensors. Use a GGUF file of the model, or safetensors in FP8 or without quantisation"
        )),
    }
}

/// Rejects an encoder or a Whisper model whose weights are quantised.
pub fn reject_quantised(config: &ConfigJson<'_>) -> Result<()> {
    let Some(found) = config.object(KEY, "quantization_config.")? else { return Ok(()) };
    reject_config(format!(
        "weights quantised by {} are not supported for this kind of model. Use safetensors without quantisation",
        method(&found)?
    ))
}

fn method<'a>(found: &ConfigJson<'a>) -> Result<&'a str> {
    Ok(found.text("quant_method")?.unwrap_or("an unknown method"))
}

/// The first unsupported format of the groups of modules of a model in the format of llm-compressor.
fn compressed_format(found: &ConfigJson<'_>) -> Result<Option<String>> {
    let sparsity = found.value.pointer("/sparsity_config/format").and_then(Value::as_str);
    if let Some(format) = sparsity.filter(|format| *format != "dense") {
        return Ok(Some(format.to_owned()));
    }
    let of_all = found.text("format")?.unwrap_or("an unknown format");
    let Some(groups) = found.object("config_groups", "quantization_config.config_groups.")? else {
        return Ok((!PLAIN_FORMATS.contains(&of_all)).then(|| of_all.to_owned()));
    };
    let groups = groups.value.as_object().into_iter().flat_map(|groups| groups.values());
    let mut unsupported = groups.filter_map(|group| {
        let format = group.get("format").and_then(Value::as_str).unwrap_or(of_all);
        let weights = group.get("weights").filter(|weights| !weights.is_null())?;
        let bits = weights.get("num_bits").and_then(Value::as_u64).unwrap_or(0);
        let kind = weights.get("type").and_then(Value::as_str).unwrap_or("unknown");
        match (PLAIN_FORMATS.contains(&format), kind, bits) {
            (true, "float", 8) => None,
            (true, ..) => Some(format!("{format} with weights of {bits} bits and the type {kind}")),
            (false, ..) => Some(format.to_owned()),
        }
    });
    Ok(unsupported.next())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn problem(check: impl Fn(&ConfigJson<'_>) -> Result<()>, quantization: &Value) -> Option<String> {
        let value = json!({ KEY: quantization });
        check(&ConfigJson { value: &value, path: "" }).err().map(|error| error.to_string())
    }

    fn decoder_problem(quantization: &Value) -> Option<String> {
        problem(|config| check_decoder(config, false), quantization)
    }

    fn compressed(format: &str, weights: &Value) -> Value {
        json!({"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": {"weights": weights}}})
    }

    #[test]
    fn formats_in_fp8_are_supported() {
        let float = json!({"num_bits": 8, "type": "float", "strategy": "channel"});
        let mut mixed = compressed("mixed-precision", &float);
        mixed["config_groups"]["group_0"]["format"] = json!("float-quantized");
        mixed["sparsity_config"] = json!({"format": "dense"});
        for supported in [
            Value::Null,
            json!({"quant_method": "fp8", "weight_block_size": [128, 128]}),
            json!({"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": null}),
            json!({"quant_method": "fbgemm_fp8"}),
            json!({"quant_method": "modelopt", "quant_algo": "FP8"}),
            compressed("float-quantized", &float),
            compressed("naive-quantized", &float),
            mixed,
        ] {
            assert_eq!(decoder_problem(&supported), None, "{supported}");
        }
    }

    #[test]
    fn other_formats_are_named_with_what_to_use_instead() {
        let (float, int) = (json!({"num_bits": 8, "type": "float"}), json!({"num_bits": 4, "type": "int"}));
        let mut sparse = compressed("float-quantized", &float);
        sparse["sparsity_config"] = json!({"format": "sparse-24-bitmask"});
        let mut mixed = compressed("mixed-precision", &float);
        mixed["config_groups"]["group_0"]["format"] = json!("float-quantized");
        mixed["config_groups"]["group_1"] =
            json!({"format": "nvfp4-pack-quantized", "weights": {"num_bits": 4, "type": "float"}});
        for (refused, words) in [
            (json!({"quant_method": "gptq"}), "quantised by gptq are"),
            (json!({"quant_method": "awq"}), "quantised by awq are"),
            (json!({"quant_method": "bitsandbytes"}), "quantised by bitsandbytes are"),
            (json!({"quant_method": "mxfp4"}), "quantised by mxfp4 are"),
            (json!({"quant_method": "mxfp8"}), "quantised by mxfp8 are"),
            (json!({"quant_method": "modelopt", "quant_algo": "NVFP4"}), "quantised by modelopt as NVFP4 are"),
            (json!({"quant_method": "modelopt"}), "quantised by modelopt as an unknown algorithm are"),
            (json!({"bits": 4}), "quantised by an unknown method are"),
            (json!({"quant_method": "compressed-tensors"}), "quantised by compressed-tensors as an unknown format are"),
            (compressed("pack-quantized", &int), "quantised by compressed-tensors as pack-quantized are"),
            (compressed("naive-quantized", &int), "as naive-quantized with weights of 4 bits and the type int are"),
            (sparse, "quantised by compressed-tensors as sparse-24-bitmask are"),
            (mixed, "quantised by compressed-tensors as nvfp4-pack-quantized are"),
        ] {
            let problem = decoder_problem(&refused).unwrap_or_default();
            assert!(problem.contains(words) && problem.contains("Use a GGUF file"), "{refused}: {problem}");
        }
        assert_eq!(problem(|config| check_decoder(config, true), &json!({"quant_method": "mxfp4"})), None);
    }

    #[test]
    fn quantised_weights_of_other_kinds_of_models_are_refused() {
        let error = problem(reject_quantised, &json!({"quant_method": "fp8"})).unwrap_or_default();
        assert!(error.contains("quantised by fp8") && error.contains("without quantisation"), "{error}");
        assert_eq!(problem(reject_quantised, &Value::Null), None);
    }
}
