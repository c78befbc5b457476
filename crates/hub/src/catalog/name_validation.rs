//! Which names may become folders and files.

use outpost_models::model_files::is_hidden;

/// Max length of a model name, and so of a folder name.
const MAX_MODEL_NAME_BYTES: usize = 96;
/// Max nesting of a model's files; diffusers layouts need two.
const MAX_DEPTH: usize = 8;
const MAX_COMPONENT_BYTES: usize = 255;

/// Reserved names in the models folder: adapters, the catalog of a checkout, and the settings of models.
pub(super) const RESERVED: [&str; 3] = ["loras", "catalog.toml", "models.toml"];

/// True for reserved names and those of hidden files. Ignores case, because some file systems do.
pub fn is_reserved(name: &str) -> bool {
    is_hidden(name) || RESERVED.iter().any(|reserved| reserved.eq_ignore_ascii_case(name))
}

/// Whether `name` is `[A-Za-z0-9][A-Za-z0-9._-]{0,95}`: safe as a folder, in a URL and in a shell.
pub fn is_model_name(name: &str) -> bool {
    name.len() <= MAX_MODEL_NAME_BYTES
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// Checks that `path` stays inside the folder it is joined to: relative, `/` as separator, no `..`.
pub fn check_file_path(path: &str) -> Result<(), &'static str> {
    if path.starts_with('/') {
        return Err("is an absolute path");
    }
    if path.split('/').count() > MAX_DEPTH {
        return Err("is nested too deeply");
    }
    path.split('/').try_for_each(check_component)
}

fn check_component(part: &str) -> Result<(), &'static str> {
    match part {
        ".." => Err("points out of its folder with '..'"),
        "" | "." => Err("has an empty or '.' path component"),
        _ if part.len() > MAX_COMPONENT_BYTES => Err("has a name over 255 bytes"),
        _ if part.contains(['\\', ':']) || part.contains(char::is_control) => {
            Err("has a character that some file systems do not allow")
        }
        _ => Ok(()),
    }
}

/// Whether `text` is a sha256 in lower-case hex.
pub fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::{check_file_path, is_model_name};

    #[test]
    fn model_names_are_plain_folder_names() {
        for good in ["a", "qwen2.5-coder-0.5b", "A_b.c-d", &"x".repeat(96)] {
            assert!(is_model_name(good), "{good}");
        }
        for bad in ["", ".hidden", "..", "-flag", "a/b", "a\\b", "a b", "ä", &"x".repeat(97)] {
            assert!(!is_model_name(bad), "{bad}");
        }
    }

    #[test]
    fn file_paths_stay_inside() {
        for good in ["model.safetensors", "1_Pooling/config.json", "unet/diffusion model.safetensors"] {
            assert_eq!(check_file_path(good), Ok(()), "{good}");
        }
        for bad in
            ["", "/etc/passwd", "../x", "a/../b", "a//b", "./a", "a/", "a\\b", "c:x", "a\nb", "a/b/c/d/e/f/g/h/i"]
        {
            assert!(check_file_path(bad).is_err(), "{bad}");
        }
    }
}
