//! Converts a source image to what a model takes: the requested size, no transparency, and a mask of what is
//! regenerated.

use image::imageops::{FilterType, resize};
use image::{DynamicImage, GrayImage, Luma, Rgb, RgbImage};

use super::codec::decode;
use crate::engine::{Image, InitImage};
use crate::error::{Error, Result};
use crate::service::concurrency_limit::Slot;

/// The same filter as in diffusers' pipelines.
const FILTER: FilterType = FilterType::Lanczos3;

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

/// What the source image is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EditKind {
    /// Inpainting or image-to-image. Transparent parts are regenerated.
    Edit,
    /// A similar image.
    Variation,
}

/// The decoded image and mask.
pub(super) struct DecodedImage {
    picture: RgbImage,
    /// 255 where the image is regenerated.
    mask: Option<GrayImage>,
    strength: f32,
}

impl SourceImage {
    /// Decodes the files. Takes up to some hundred milliseconds of CPU time.
    pub(super) fn read(self) -> Result<DecodedImage> {
        let picture = decode(&self.image, "image")?;
        let mask = match (&self.mask, self.kind) {
            (Some(file), _) => Some(mask(&decode(file, "mask")?, (picture.width(), picture.height()))?),
            (None, EditKind::Edit) => transparent_mask(&picture),
            (None, EditKind::Variation) => None,
        };
        let usual = match (self.kind, &mask) {
            (EditKind::Edit, Some(_)) => 1.0,
            (EditKind::Edit, None) => 0.8,
            (EditKind::Variation, _) => 0.6,
        };
        Ok(DecodedImage { picture: on_white(picture), mask, strength: self.strength.unwrap_or(usual) })
    }
}

impl DecodedImage {
    /// Original width and height.
    pub fn size(&self) -> [usize; 2] {
        [self.picture.width() as usize, self.picture.height() as usize]
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
        let [width, height] = size.map(|side| u32::try_from(side).unwrap_or(u32::MAX));
        let picture = match self.picture.dimensions() == (width, height) {
            true => self.picture,
            false => resize(&self.picture, width, height, FILTER),
        };
        let mask = self.mask.map(|mask| {
            let mask = resize(&mask, width, height, FILTER).into_raw();
            mask.into_iter().map(|value| if value >= 128 { 255 } else { 0 }).collect()
        });
        let picture = Image { width: size[0], height: size[1], rgb: picture.into_raw() };
        Ok(InitImage { image: picture, strength: self.strength, mask })
    }
}

/// The area that a mask marks: its transparent part, or its white part if it has no transparency.
fn mask(picture: &DynamicImage, of: (u32, u32)) -> Result<GrayImage> {
    let (width, height) = (picture.width(), picture.height());
    if (width, height) != of {
        let text = format!(
            "'mask' has {width}x{height} pixels and 'image' has {}x{}. Send a mask of the image's size.",
            of.0, of.1
        );
        return Err(Error::invalid("mask", text));
    }
    let marked = transparent_mask(picture).unwrap_or_else(|| picture.to_luma8());
    if marked.as_raw().iter().all(|value| *value < 128) {
        let text =
            "'mask' marks no area to regenerate. Make that area transparent, or white in a mask without transparency.";
        return Err(Error::invalid("mask", text));
    }
    Ok(marked)
}

/// 255 where an image is transparent; `None` if it is nearly opaque everywhere.
fn transparent_mask(picture: &DynamicImage) -> Option<GrayImage> {
    if !picture.color().has_alpha() {
        return None;
    }
    let picture = picture.to_rgba8();
    let transparent_mask =
        GrayImage::from_fn(picture.width(), picture.height(), |x, y| Luma([255 - picture.get_pixel(x, y).0[3]]));
    transparent_mask.as_raw().iter().any(|value| *value >= 128).then_some(transparent_mask)
}

/// The image composited on white.
fn on_white(picture: DynamicImage) -> RgbImage {
    if !picture.color().has_alpha() {
        return picture.into_rgb8();
    }
    let picture = picture.into_rgba8();
    RgbImage::from_fn(picture.width(), picture.height(), |x, y| {
        let [red, green, blue, alpha] = picture.get_pixel(x, y).0.map(u32::from);
        // The weights sum to 255, so the result fits into a byte.
        Rgb([red, green, blue].map(|colour| ((colour * alpha + 255 * (255 - alpha) + 127) / 255) as u8))
    })
}

/// The default output size: the image's own size, rounded down, if `takes` allows it; else one with its proportions and
/// about as many pixels as `usual`; else `usual`.
pub(super) fn nearest_size(own: [usize; 2], usual: [usize; 2], takes: impl Fn([usize; 2]) -> bool) -> [usize; 2] {
    let rounded = |size: [usize; 2]| {
        let to = |part: usize| size.map(|side| side / part * part);
        [8, 16, 32, 64].into_iter().map(to).find(|size| size.iter().all(|side| *side > 0) && takes(*size))
    };
    let area = |[width, height]: [usize; 2]| width as f64 * height as f64;
    let scale = (area(usual) / area(own).max(1.0)).sqrt();
    let scaled = own.map(|side| (side as f64 * scale + 0.5) as usize);
    rounded(own).or_else(|| rounded(scaled)).unwrap_or(usual)
}

#[cfg(test)]
mod tests {
    use image::{DynamicImage, GrayImage, Luma, Rgb, RgbImage, Rgba, RgbaImage};

    use super::{DecodedImage, mask, nearest_size, on_white, transparent_mask};

    fn half(left: Rgba<u8>, right: Rgba<u8>) -> DynamicImage {
        RgbaImage::from_fn(16, 8, |x, _| if x < 8 { left } else { right }).into()
    }

    #[test]
    fn the_size_is_the_picture_s_own_or_one_of_its_proportions() {
        let takes = |[width, height]: [usize; 2]| {
            width % 16 == 0 && height % 16 == 0 && width.max(height) <= 1024 && width.min(height) >= 256
        };
        let cases = [
            ([512, 512], [512, 512]),
            ([777, 333], [768, 320]),
            ([4000, 3000], [576, 432]),
            ([40, 30], [576, 432]),
            ([5000, 10], [512, 512]),
        ];
        for (own, size) in cases {
            assert_eq!(nearest_size(own, [512, 512], takes), size, "{own:?}");
        }
    }

    #[test]
    fn what_is_transparent_is_painted_anew() {
        let picture = half(Rgba([9, 9, 9, 0]), Rgba([9, 9, 9, 255]));
        let marked = transparent_mask(&picture).unwrap();
        assert_eq!((marked.get_pixel(0, 0).0, marked.get_pixel(8, 0).0), ([255], [0]));
        assert!(transparent_mask(&half(Rgba([9; 4]), Rgba([9, 9, 9, 255]))).is_some());
        assert!(
            transparent_mask(&half(Rgba([9, 9, 9, 200]), Rgba([9, 9, 9, 255]))).is_none(),
            "a soft edge is no hole"
        );
        assert!(transparent_mask(&DynamicImage::ImageRgb8(RgbImage::new(4, 4))).is_none());
    }

    #[test]
    fn a_mask_without_transparency_is_white_where_it_is_painted_anew() {
        let (black, white) = (Rgba([0, 0, 0, 255]), Rgba([255; 4]));
        let marked = mask(&half(black, white), (16, 8)).unwrap();
        assert_eq!((marked.get_pixel(0, 0).0, marked.get_pixel(8, 0).0), ([0], [255]));
        for (picture, of) in [(half(black, black), (16, 8)), (half(black, white), (8, 16))] {
            let error = mask(&picture, of).unwrap_err();
            assert_eq!((error.code().status(), error.param_name()), (400, Some("mask")), "{error}");
        }
    }

    #[test]
    fn transparency_lies_on_white() {
        let picture = on_white(half(Rgba([0, 0, 0, 0]), Rgba([200, 0, 100, 128])));
        assert_eq!((picture.get_pixel(0, 0), picture.get_pixel(8, 0)), (&Rgb([255; 3]), &Rgb([227, 127, 177])));
    }

    #[test]
    fn picture_and_mask_are_brought_to_one_size_and_the_mask_has_no_grey() {
        let picture = RgbImage::from_pixel(64, 32, Rgb([10, 20, 30]));
        let mask = GrayImage::from_fn(64, 32, |x, _| Luma([if x < 32 { 255 } else { 0 }]));
        let source = DecodedImage { picture, mask: Some(mask), strength: 0.5 }.resized([24, 16], 10).unwrap();
        assert_eq!((source.image.width, source.image.height, source.image.rgb.len()), (24, 16, 24 * 16 * 3));
        assert_eq!(source.image.rgb[..3], [10, 20, 30]);
        let mask = source.mask.unwrap();
        assert_eq!((mask.len(), mask[0], mask[23]), (24 * 16, 255, 0));
        assert!(mask.iter().all(|value| [0, 255].contains(value)));
    }

    #[test]
    fn a_strength_that_leaves_no_step_is_refused() {
        let sent = || DecodedImage { picture: RgbImage::new(8, 8), mask: None, strength: 0.1 };
        assert_eq!(sent().resized([8, 8], 9).unwrap_err().param_name(), Some("strength"));
        assert!(sent().resized([8, 8], 10).is_ok());
    }
}
