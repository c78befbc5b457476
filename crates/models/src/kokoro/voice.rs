//! Voices: a style for each number of phonemes.

use std::io::Read;
use std::path::Path;

use crate::error::{ModelError, Result};
use crate::model_files::is_safetensors;
use crate::safetensors::{ModelFolder, open};
use crate::weights::Weights;

/// The most bytes of a voice file.
const MAX_BYTES: u64 = 16 << 20;

/// The styles of a voice: `[phonemes, width]`. The row of a text is its number of phonemes, minus one.
#[derive(Clone, Debug, PartialEq)]
pub struct Voice {
    width: usize,
    styles: Vec<f32>,
}

impl Voice {
    /// Reads a voice whose styles have `width` elements: floats without a header (`.bin`), or the only tensor of a
    /// `.safetensors` file, `[phonemes, width]` or `[phonemes, 1, width]`.
    ///
    /// # Errors
    /// If the file is damaged, or has styles of another width.
    pub fn read(path: &Path, width: usize) -> Result<Self> {
        let styles = match is_safetensors(path) {
            true => read_tensor(path)?,
            false => read_floats(path)?,
        };
        Self::new(styles, width).map_err(|problem| {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            ModelError::Checkpoint(format!("voice {file}: {problem}"))
        })
    }

    /// A voice of these styles, `[phonemes, width]`.
    fn new(styles: Vec<f32>, width: usize) -> std::result::Result<Self, String> {
        if width == 0 || styles.is_empty() || !styles.len().is_multiple_of(width) {
            return Err(format!("{} values are not styles of {width}", styles.len()));
        }
        match styles.iter().all(|value| value.is_finite()) {
            true => Ok(Self { width, styles }),
            false => Err("it has values that are not finite".to_owned()),
        }
    }

    /// The weighted mean of voices.
    ///
    /// # Errors
    /// If there are none, a weight is not positive, or the voices have different sizes.
    pub fn mix(voices: &[(&Self, f32)]) -> Result<Self> {
        let Some((first, _)) = voices.first() else {
            return Err(ModelError::Parameters("a mix needs at least one voice".to_owned()));
        };
        if !voices.iter().all(|(_, weight)| weight.is_finite() && *weight > 0.) {
            return Err(ModelError::Parameters("the weights of voices must be positive".to_owned()));
        }
        if !voices.iter().all(|(voice, _)| (voice.width, voice.styles.len()) == (first.width, first.styles.len())) {
            return Err(ModelError::Parameters("voices of different sizes cannot be mixed".to_owned()));
        }
        let total: f32 = voices.iter().map(|(_, weight)| weight).sum();
        let mut styles = vec![0.; first.styles.len()];
        for (voice, weight) in voices {
            styles.iter_mut().zip(&voice.styles).for_each(|(sum, value)| *sum += value * weight / total);
        }
        Ok(Self { width: first.width, styles })
    }

    /// The style of a text with this number of phonemes, without the tokens at both ends. Longer texts than those of the
    /// voice have the style of its longest one.
    pub fn style(&self, phonemes: usize) -> &[f32] {
        let last = self.styles.len() / self.width - 1;
        let row = phonemes.saturating_sub(1).min(last);
        self.styles.get(row * self.width..(row + 1) * self.width).unwrap_or_default()
    }
}

fn read_floats(path: &Path) -> Result<Vec<f32>> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let invalid = |problem: String| ModelError::Checkpoint(format!("voice {name}: {problem}"));
    let unreadable = |error: std::io::Error| invalid(format!("the file cannot be read: {error}"));
    let (file, mut bytes) = (open(path)?, Vec::new());
    let size = file.metadata().map_err(unreadable)?.len();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(invalid(format!("the file has {size} bytes; the limit is {MAX_BYTES}")));
    }
    if !bytes.len().is_multiple_of(size_of::<f32>()) {
        return Err(invalid(format!("its {size} bytes are not a list of floats")));
    }
    Ok(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

fn read_tensor(path: &Path) -> Result<Vec<f32>> {
    let file = ModelFolder::open_file(path)?;
    let (mut names, too_many) = (file.names(), "a voice must have one tensor, of at most 16 MiB".to_owned());
    let (Some(name), None) = (names.next(), names.next()) else { return Err(ModelError::Checkpoint(too_many)) };
    let shape = Weights::shape(&file, name).unwrap_or_default();
    let elements = shape.iter().try_fold(1u64, |product, size| product.checked_mul(*size as u64));
    if shape.len() < 2 || elements.is_none_or(|elements| elements > MAX_BYTES / 4) {
        return Err(ModelError::Checkpoint(too_many));
    }
    let rows = shape.iter().rev().skip(1).product();
    Weights::rows(&file, name, 0, rows)?.floats()
}

#[cfg(test)]
mod tests {
    use super::Voice;

    #[test]
    fn a_mix_is_the_weighted_mean() {
        let voice = |values: &[f32]| Voice::new(values.to_vec(), 2).unwrap();
        let (first, second) = (voice(&[0., 4., 8., 0.]), voice(&[4., 0., 0., 8.]));
        let mix = Voice::mix(&[(&first, 3.), (&second, 1.)]).unwrap();
        assert_eq!(mix, voice(&[1., 3., 6., 2.]));
        assert_eq!([mix.style(0), mix.style(1), mix.style(2), mix.style(9)], [[1., 3.], [1., 3.], [6., 2.], [6., 2.]]);
        assert!(Voice::mix(&[]).is_err());
        assert!(Voice::mix(&[(&first, 0.)]).is_err());
        assert!(Voice::mix(&[(&first, 1.), (&voice(&[1., 2.]), 1.)]).is_err());
        assert!(Voice::new(vec![1., 2., 3.], 2).is_err());
        assert!(Voice::new(vec![1., f32::NAN], 2).is_err());
    }

    #[test]
    fn files_are_read_and_checked() {
        let folder = std::env::temp_dir().join(format!("outpost-voice-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("one.bin");
        let bytes: Vec<u8> = [1f32, 2., 3., 4.].iter().flat_map(|value| value.to_le_bytes()).collect();
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(Voice::read(&path, 2).unwrap().style(2), [3., 4.]);
        assert!(Voice::read(&path, 3).is_err());
        std::fs::write(&path, &bytes[1..]).unwrap();
        assert!(Voice::read(&path, 2).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
