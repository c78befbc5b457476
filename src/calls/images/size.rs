//! The size of an image: as requested, that of the source image, or the model's default.

use crate::engine::{ImageModel, MAX_IMAGE_SIDE, MIN_IMAGE_SIDE};
use crate::error::{Error, Result};

/// The size of an image, as width and height in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ImageSize {
    /// At which the model generates it.
    pub generated: [usize; 2],
    /// To which it is then scaled.
    pub output: [usize; 2],
}

impl ImageSize {
    /// `resize`: whether the image may be generated at another size and scaled. `original`: of the source image.
    pub fn select(
        model: &ImageModel,
        requested: Option<[usize; 2]>,
        resize: bool,
        original: Option<[usize; 2]>,
    ) -> Result<Self> {
        let same = |size| Self { generated: size, output: size };
        match (requested, original) {
            (Some(size), _) if resize => scaled(model, size),
            (None, Some(original)) if resize => {
                let output = within_limits(original);
                scaled(model, output).map_err(|_| unsuitable_source(model, output))
            }
            (Some(size), _) => match model.check_size(size) {
                Ok(()) => Ok(same(size)),
                Err(why) => Err(refusal(model, size, &why)),
            },
            (None, Some(original)) => {
                let is_supported = |size| model.check_size(size).is_ok();
                Ok(same(nearest_size(original, model.default_size(), is_supported)))
            }
            (None, None) => Ok(same(model.default_size())),
        }
    }
}

/// Generated at the best size for the aspect ratio of `output`, and scaled to it.
fn scaled(model: &ImageModel, output: [usize; 2]) -> Result<ImageSize> {
    if !is_within_limits(output) {
        let text = format!(
            "'size' is {}; with resize: true, width and height must be from {MIN_IMAGE_SIDE} to {MAX_IMAGE_SIDE}.",
            size_text(output)
        );
        return Err(Error::invalid("size", text));
    }
    let generated = model.sizes().best_for(output).ok_or_else(|| {
        let text = format!(
            "'size' is {}, and the model '{}' supports no size with a similar aspect ratio. Sizes that it is good at: {}.",
            size_text(output),
            model.id(),
            preferred(model)
        );
        Error::invalid("size", text)
    })?;
    model.check_size(generated).map_err(|why| Error::invalid("size", format!("'size' cannot be generated: {why}.")))?;
    Ok(ImageSize { generated, output })
}

/// Refuses a size for an upstream model that no model of this server supports.
pub(super) fn check_upstream_size(size: [usize; 2]) -> Result<()> {
    if is_within_limits(size) {
        return Ok(());
    }
    let text =
        format!("'size' is {}; width and height must be from {MIN_IMAGE_SIDE} to {MAX_IMAGE_SIDE}.", size_text(size));
    Err(Error::invalid("size", text))
}

fn is_within_limits(size: [usize; 2]) -> bool {
    size.iter().all(|side| (MIN_IMAGE_SIDE..=MAX_IMAGE_SIDE).contains(side))
}

fn refusal(model: &ImageModel, size: [usize; 2], why: &str) -> Error {
    let resize = match scaled(model, size) {
        Ok(_) => format!(
            ", or add resize: true to have the image generated at a suitable size and scaled to {}",
            size_text(size)
        ),
        Err(_) => String::new(),
    };
    let text = format!(
        "'size' is {}, but {why}. Sizes that the model '{}' is good at: {}. Send one of them{resize}.",
        size_text(size),
        model.id(),
        preferred(model)
    );
    Error::invalid("size", text)
}

/// The error for a source image to whose size, within the limits, no image can be scaled.
fn unsuitable_source(model: &ImageModel, output: [usize; 2]) -> Error {
    let text = format!(
        "'size' is missing, and the size of the source image ({} within the limits) suits no size of the model '{}'. Sizes that it is good at: {}. Send one of them.",
        size_text(output),
        model.id(),
        preferred(model)
    );
    Error::invalid("size", text)
}

fn preferred(model: &ImageModel) -> String {
    model.sizes().preferred().into_iter().map(size_text).collect::<Vec<_>>().join(", ")
}

/// A size as in requests and responses, such as `512x512`.
pub fn size_text([width, height]: [usize; 2]) -> String {
    format!("{width}x{height}")
}

/// The output size for a source image: its own size, scaled down so that no side is above [`MAX_IMAGE_SIDE`]. A shorter side
/// below [`MIN_IMAGE_SIDE`] is raised to it.
fn within_limits(original: [usize; 2]) -> [usize; 2] {
    let scale = (MAX_IMAGE_SIDE as f64 / original.into_iter().max().unwrap_or(1).max(1) as f64).min(1.);
    original.map(|side| ((side as f64 * scale).round() as usize).max(MIN_IMAGE_SIDE))
}

/// The default output size: the image's original size, rounded down, if `is_supported` allows it; else one with its
/// proportions and about as many pixels as `default`; else `default`.
fn nearest_size(original: [usize; 2], default: [usize; 2], is_supported: impl Fn([usize; 2]) -> bool) -> [usize; 2] {
    let rounded = |size: [usize; 2]| {
        let round_down = |multiple: usize| size.map(|side| side / multiple * multiple);
        [8, 16, 32, 64]
            .into_iter()
            .map(round_down)
            .find(|size| size.iter().all(|side| *side > 0) && is_supported(*size))
    };
    let area = |[width, height]: [usize; 2]| width as f64 * height as f64;
    let scale = (area(default) / area(original).max(1.0)).sqrt();
    let scaled = original.map(|side| (side as f64 * scale + 0.5) as usize);
    rounded(original).or_else(|| rounded(scaled)).unwrap_or(default)
}

#[cfg(test)]
mod tests {
    use super::{nearest_size, within_limits};

    #[test]
    fn the_default_size_is_the_image_size_or_has_its_proportions() {
        let is_supported = |[width, height]: [usize; 2]| {
            width % 16 == 0 && height % 16 == 0 && width.max(height) <= 1024 && width.min(height) >= 256
        };
        let cases = [
            ([512, 512], [512, 512]),
            ([777, 333], [768, 320]),
            ([4000, 3000], [576, 432]),
            ([40, 30], [576, 432]),
            ([5000, 10], [512, 512]),
        ];
        for (original, size) in cases {
            assert_eq!(nearest_size(original, [512, 512], is_supported), size, "{original:?}");
        }
    }

    #[test]
    fn a_large_source_image_is_returned_at_the_largest_size() {
        assert_eq!(within_limits([4000, 3000]), [2048, 1536]);
        assert_eq!(within_limits([100, 60]), [100, 60]);
        assert_eq!(within_limits([8000, 4]), [2048, 16]);
    }
}
