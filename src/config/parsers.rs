//! Reads the values of arguments.

use std::net::SocketAddr;

use clap::ValueEnum;

use super::choices::{DraftModel, ModelDevice, ModelPrecision, Precision};

/// Reads `6GiB`, `800MB`, `4G` or plain bytes.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let hint = || format!("'{text}' is not a size; write for example 6GiB, 800MB or a number of bytes");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| hint())?;
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(hint()),
    };
    number.checked_mul(factor).ok_or_else(hint)
}

/// Reads `https://host[:port][/path]`.
pub(super) fn parse_public_url(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._~:[]/%".contains(c);
    match rest {
        Some(rest) if rest.starts_with(|c| plain(c) && c != '/') && rest.chars().all(plain) => {
            Ok(text.trim_end_matches('/').to_owned())
        }
        _ => Err(format!("'{text}' is not a URL; write for example https://ai.example.org or https://example.org/ai")),
    }
}

/// Reads an address and a port, or a port of this machine only.
pub(crate) fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    let (host, port) = text.rsplit_once(':').unwrap_or((text, "8080"));
    if host == "localhost"
        && let Ok(port) = port.parse::<u16>()
    {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    text.parse().map_err(|_| {
        let port = if port.parse::<u16>().is_ok() { port } else { "8080" };
        format!("'{text}' is not an address with a port; write 127.0.0.1:{port} for this machine only, or 0.0.0.0:{port} for the network")
    })
}

/// Reads the name of a host, without scheme, port or path.
pub(super) fn parse_host(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => Ok(text.to_owned()),
        false => Err(format!("'{text}' is not a host name; write for example ai.example.org")),
    }
}

/// `bf16`, or `MODEL=bf16`.
pub(super) fn parse_precision(text: &str) -> Result<ModelPrecision, String> {
    let (model, name) = text.rsplit_once('=').map_or((None, text), |(model, name)| (Some(model), name));
    let precision = Precision::from_str(name, true).ok().filter(|_| model != Some(""));
    let model = model.map(str::to_owned);
    let wrong = || format!("'{text}' is not a precision; write f32, bf16 or int8, or MODEL=bf16 with a model's name");
    precision.map(|precision| ModelPrecision { model, precision }).ok_or_else(wrong)
}

/// `cuda:1`, or `MODEL=cuda:1`.
pub(super) fn parse_device(text: &str) -> Result<ModelDevice, String> {
    let (model, name) = text.rsplit_once('=').map_or((None, text), |(model, name)| (Some(model), name));
    if model == Some("") {
        return Err(format!("'{text}' names no model; write MODEL=cuda:1 with a model's name"));
    }
    let device = name.parse().map_err(|wrong| format!("'{name}' is not a device; {wrong}"))?;
    Ok(ModelDevice { model: model.map(str::to_owned), device })
}

/// Reads `auto`, `none` or `TARGET=DRAFT`.
pub(super) fn parse_draft(text: &str) -> Result<DraftModel, String> {
    match text.split_once('=') {
        Some((target, draft)) if !target.is_empty() && !draft.is_empty() && target != draft => {
            Ok(DraftModel::Named { target: target.to_owned(), draft: draft.to_owned() })
        }
        None if text == "auto" => Ok(DraftModel::Auto),
        None if text == "none" => Ok(DraftModel::None),
        _ => Err(format!("'{text}' names no draft model; write auto, none or TARGET=DRAFT with two models' names")),
    }
}

#[cfg(test)]
mod tests {
    use super::{parse_device, parse_draft, parse_listen, parse_precision, parse_public_url, parse_size};
    use crate::config::{DraftModel, ModelDevice, ModelPrecision, Precision};
    use crate::device_choice::DeviceChoice;

    #[test]
    fn a_port_alone_listens_on_this_machine() {
        for (text, address) in [
            ("8080", "127.0.0.1:8080"),
            ("localhost:9", "127.0.0.1:9"),
            ("0.0.0.0:80", "0.0.0.0:80"),
            ("[::1]:0", "[::1]:0"),
        ] {
            assert_eq!(parse_listen(text), Ok(address.parse().unwrap()));
        }
        for bad in ["", ":8080", "*:8080", "70000", "example.org:8080", "127.0.0.1"] {
            assert!(parse_listen(bad).is_err_and(|error| error.contains("write 127.0.0.1:8080")), "{bad}");
        }
    }

    #[test]
    fn public_addresses_are_whole() {
        for good in ["https://ai.example.org", "http://10.0.0.1:8080", "https://[::1]:443/ai"] {
            assert_eq!(parse_public_url(good).as_deref(), Ok(good));
            assert_eq!(parse_public_url(&format!("{good}/")).as_deref(), Ok(good));
        }
        for bad in
            ["", "ai.example.org", "https://", "https:///x", "ftp://x", "https://x/?a", "https://x y", "https://a@b"]
        {
            assert!(parse_public_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn precisions_are_of_one_model_or_of_all() {
        let of = |model: Option<&str>, precision| Ok(ModelPrecision { model: model.map(str::to_owned), precision });
        assert_eq!(parse_precision("bf16"), of(None, Precision::Bf16));
        assert_eq!(parse_precision("a=b=int8"), of(Some("a=b"), Precision::Int8));
        for bad in ["", "f64", "=f32", "model=", "model"] {
            assert!(parse_precision(bad).unwrap_err().contains("bf16"), "{bad}");
        }
    }

    #[test]
    fn devices_are_of_one_model_or_of_all() {
        let of = |model: Option<&str>, device| Ok(ModelDevice { model: model.map(str::to_owned), device });
        assert_eq!(parse_device("cuda"), of(None, DeviceChoice::Cuda(0)));
        assert_eq!(parse_device("a=b=cuda:2"), of(Some("a=b"), DeviceChoice::Cuda(2)));
        assert_eq!(parse_device("model:0.5b=cpu"), of(Some("model:0.5b"), DeviceChoice::Cpu));
        for bad in ["", "gpu", "model=", "model=gpu", "cuda:x"] {
            assert!(parse_device(bad).unwrap_err().contains("cuda:1"), "{bad}");
        }
        assert!(parse_device("=cpu").unwrap_err().contains("names no model"));
    }

    #[test]
    fn draft_models_are_named_in_pairs() {
        let named = DraftModel::Named { target: "large".to_owned(), draft: "small".to_owned() };
        assert_eq!(parse_draft("large=small"), Ok(named));
        assert_eq!((parse_draft("auto"), parse_draft("none")), (Ok(DraftModel::Auto), Ok(DraftModel::None)));
        for bad in ["", "=", "a=", "=b", "a=a", "small"] {
            assert!(parse_draft(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(parse_size("6GiB"), Ok(6 << 30));
        assert_eq!(parse_size("800MB"), Ok(800_000_000));
        assert_eq!(parse_size("4g"), Ok(4 << 30));
        assert_eq!(parse_size("123"), Ok(123));
        for bad in ["", "GiB", "1.5G", "-1", "99999999999T", "5 apples"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
