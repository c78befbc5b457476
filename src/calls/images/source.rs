//! Converts a source image to what a model accepts: the requested size, no transparency, and a mask of what is
//! regenerated.

use image::imageops::resize;
use image::{DynamicImage, GrayImage, Luma, Rgb, RgbImage};

use super::codec::{FILTER, decode, scale};
use crate::engine::{Image, InitImage};
use crate::error::{Error, Result};
use crate::service::limits::concurrency_limit::Slot;

/// The source image of a request, its mask, and how much is to change.
pub struct SourceImage {
    pub image: Vec<u8>,
    pub mask: Option<Vec<u8>>,
    /// Above 0 up to 1; `None`: the default.
    pub strength: Option<f32>,
    pub kind: EditKind,
    /// Held until the files are decoded.
    pub slot: Slot,
}

/// The purpose of the source image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EditKind {
    /// Inpainting or image-to-image. Transparent parts are regenerated.
    Edit,
    /// A similar image.
    Variation,
}

/// The decoded image and mask.
pub(super) struct DecodedImage {
    image: RgbImage,
    /// 255 where the image is regenerated.
    mask: Option<GrayImage>,
    strength: f32,
}

impl SourceImage {
    /// Decodes the files. Takes up to some hundred milliseconds of CPU time.
    pub(super) fn read(self) -> Result<DecodedImage> {
        let image = decode(&self.image, "image")?;
        let mask = match (&self.mask, self.kind) {
            (Some(file), _) => Some(mask(&decode(file, "mask")?, (image.width(), image.height()))?),
            (None, EditKind::Edit) => transparent_mask(&image),
            (None, EditKind::Variation) => None,
        };
        let default = match (self.kind, &mask) {
            (EditKind::Edit, Some(_)) => 1.0,
            (EditKind::Edit, None) => 0.8,
            (EditKind::Variation, _) => 0.6,
        };
        Ok(DecodedImage { image: on_white(image), mask, strength: self.strength.unwrap_or(default) })
    }
}

impl DecodedImage {
    /// Original width and height.
    pub fn size(&self) -> [usize; 2] {
        [self.image.width() as usize, self.image.height() as usize]
    }

    /// Resizes to `size` without keeping proportions. 400 if the steps are too few to change anything.
    pub fn resized(self, size: [usize; 2], steps: usize) -> Result<InitImage> {
        if (steps as f32 * self.strength) < 1.0 {
            let text = format!(
                "'strength' is {}, and of {steps} steps that leaves none. Raise 'strength' or 'steps'.",
                self.strength
            );
            return Err(Error::invalid("strength", text));
        }
        let image = scale(self.image, size);
        let (width, height) = image.dimensions();
        let mask = self.mask.map(|mask| {
            let mask = resize(&mask, width, height, FILTER).into_raw();
            mask.into_iter().map(|value| if value >= 128 { 255 } else { 0 }).collect()
        });
        let image = Image { width: size[0], height: size[1], rgb: image.into_raw() };
        Ok(InitImage { image, strength: self.strength, mask })
    }
}

/// The area that a mask marks: its transparent part, or its white part if it has no transparency.
fn mask(image: &DynamicImage, image_size: (u32, u32)) -> Result<GrayImage> {
    let (width, height) = (image.width(), image.height());
    if (width, height) != image_size {
        let text = format!(
            "'mask' has {width}x{height} pixels and 'image' has {}x{}. Send a mask of the image's size.",
            image_size.0, image_size.1
        );
        return Err(Error::invalid("mask", text));
    }
    let mask = transparent_mask(image).unwrap_or_else(|| image.to_luma8());
    if mask.as_raw().iter().all(|value| *value < 128) {
        let text =
            "'mask' marks no area to regenerate. Make that area transparent, or white in a mask without transparency.";
        return Err(Error::invalid("mask", text));
    }
    Ok(mask)
}

/// 255 where an image is transparent; `None` if it is nearly opaque everywhere.
fn transparent_mask(image: &DynamicImage) -> Option<GrayImage> {
    if !image.color().has_alpha() {
        return None;
    }
    let image = image.to_rgba8();
    let transparent_mask =
        GrayImage::from_fn(image.width(), image.height(), |x, y| Luma([255 - image.get_pixel(x, y).0[3]]));
    transparent_mask.as_raw().iter().any(|value| *value >= 128).then_some(transparent_mask)
}

/// The image composited on white.
fn on_white(image: DynamicImage) -> RgbImage {
    if !image.color().has_alpha() {
        return image.into_rgb8();
    }
    let image = image.into_rgba8();
    RgbImage::from_fn(image.width(), image.height(), |x, y| {
        let [red, green, blue, alpha] = image.get_pixel(x, y).0.map(u32::from);
        // The weights sum to 255, so the result fits into a byte.
        Rgb([red, green, blue].map(|colour| ((colour * alpha + 255 * (255 - alpha) + 127) / 255) as u8))
    })
}

#[cfg(test)]
mod tests {
    use image::{DynamicImage, GrayImage, Luma, Rgb, RgbImage, Rgba, RgbaImage};

    use super::{DecodedImage, mask, on_white, transparent_mask};

    fn half(left: Rgba<u8>, right: Rgba<u8>) -> DynamicImage {
        RgbaImage::from_fn(16, 8, |x, _| if x < 8 { left } else { right }).into()
    }

    #[test]
    fn transparent_pixels_are_regenerated() {
        let image = half(Rgba([9, 9, 9, 0]), Rgba([9, 9, 9, 255]));
        let mask = transparent_mask(&image).unwrap();
        assert_eq!((mask.get_pixel(0, 0).0, mask.get_pixel(8, 0).0), ([255], [0]));
        assert!(transparent_mask(&half(Rgba([9; 4]), Rgba([9, 9, 9, 255]))).is_some());
        assert!(
            transparent_mask(&half(Rgba([9, 9, 9, 200]), Rgba([9, 9, 9, 255]))).is_none(),
            "a soft edge is not a hole"
        );
        assert!(transparent_mask(&DynamicImage::ImageRgb8(RgbImage::new(4, 4))).is_none());
    }

    #[test]
    fn white_pixels_of_an_opaque_mask_are_regenerated() {
        let (black, white) = (Rgba([0, 0, 0, 255]), Rgba([255; 4]));
        let marked = mask(&half(black, white), (16, 8)).unwrap();
        assert_eq!((marked.get_pixel(0, 0).0, marked.get_pixel(8, 0).0), ([0], [255]));
        for (image, image_size) in [(half(black, black), (16, 8)), (half(black, white), (8, 16))] {
            let error = mask(&image, image_size).unwrap_err();
            assert_eq!((error.code().status(), error.param_name()), (400, Some("mask")), "{error}");
        }
    }

    #[test]
    fn transparent_images_are_composited_on_white() {
        let image = on_white(half(Rgba([0, 0, 0, 0]), Rgba([200, 0, 100, 128])));
        assert_eq!((image.get_pixel(0, 0), image.get_pixel(8, 0)), (&Rgb([255; 3]), &Rgb([227, 127, 177])));
    }

    #[test]
    fn image_and_mask_are_resized_and_the_mask_stays_binary() {
        let image = RgbImage::from_pixel(64, 32, Rgb([10, 20, 30]));
        let mask = GrayImage::from_fn(64, 32, |x, _| Luma([if x < 32 { 255 } else { 0 }]));
        let source = DecodedImage { image, mask: Some(mask), strength: 0.5 }.resized([24, 16], 10).unwrap();
        assert_eq!((source.image.width, source.image.height, source.image.rgb.len()), (24, 16, 24 * 16 * 3));
        assert_eq!(source.image.rgb[..3], [10, 20, 30]);
        let mask = source.mask.unwrap();
        assert_eq!((mask.len(), mask[0], mask[23]), (24 * 16, 255, 0));
        assert!(mask.iter().all(|value| [0, 255].contains(value)));
    }

    #[test]
    fn a_strength_that_leaves_no_step_is_rejected() {
        let source = || DecodedImage { image: RgbImage::new(8, 8), mask: None, strength: 0.1 };
        assert_eq!(source().resized([8, 8], 9).unwrap_err().param_name(), Some("strength"));
        assert!(source().resized([8, 8], 10).is_ok());
    }
}
