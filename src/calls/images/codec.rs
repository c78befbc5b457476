//! Image files: PNG, JPEG and WebP.

use std::io::Cursor;

use image::codecs::{jpeg::JpegEncoder, png::PngEncoder, webp::WebPEncoder};
use image::imageops::{FilterType, resize};
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits, RgbImage};

use super::jpeg;
use crate::engine::{Image, MAX_IMAGE_SIDE};
use crate::error::{Error, Result};
use crate::service::stored_images::Format;

/// Limits on the side length and pixel count of a decoded image; a file of a few bytes can claim any size.
const MAX_SIDE: u32 = 8192;
const MAX_PIXELS: u64 = 25_000_000;
/// Memory limit for decoding: those pixels with four 16-bit channels, and some slack.
const MAX_DECODE_MEMORY: u64 = 256 << 20;

/// The same filter as in diffusers' pipelines.
pub(super) const FILTER: FilterType = FilterType::Lanczos3;

/// Output format of images.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    pub format: Format,
    /// JPEG quality, 0 to 100.
    pub quality: u8,
}

/// Scales an image to `size`, its width and height in pixels, and encodes it. WebP is lossless, as PNG is. Takes
/// milliseconds of CPU time, and up to some hundred for the largest images.
pub fn encode(image: Image, size: [usize; 2], output: Output) -> Result<Vec<u8>> {
    let Image { width, height, rgb } = image;
    let generated = [width, height].map(|side| u32::try_from(side).unwrap_or(u32::MAX));
    let image = RgbImage::from_raw(generated[0], generated[1], rgb);
    let image = image.ok_or_else(|| Error::internal("an image's bytes do not match its size"))?;
    let image = scale(image, size);
    let mut bytes = Vec::new();
    let written = match output.format {
        Format::Png => image.write_with_encoder(PngEncoder::new(&mut bytes)),
        Format::Jpeg => image.write_with_encoder(JpegEncoder::new_with_quality(&mut bytes, output.quality.max(1))),
        Format::WebP => image.write_with_encoder(WebPEncoder::new_lossless(&mut bytes)),
    };
    written.map(|()| bytes).map_err(Error::internal)
}

/// Scales an image to a width and height in pixels, without keeping its proportions.
pub(super) fn scale(image: RgbImage, size: [usize; 2]) -> RgbImage {
    let [width, height] = size.map(|side| u32::try_from(side).unwrap_or(u32::MAX));
    match image.dimensions() == (width, height) {
        true => image,
        false => resize(&image, width, height, FILTER),
    }
}

/// Decodes the image that a client sent as `field` and applies its orientation.
pub fn decode(bytes: &[u8], field: &str) -> Result<DynamicImage> {
    decode_limited(bytes, field, MAX_SIDE)
}

/// Decodes an image that an upstream model has generated. No side may be above [`MAX_IMAGE_SIDE`], as with local models.
pub(super) fn decode_generated(bytes: &[u8]) -> Result<Image> {
    let max_side = u32::try_from(MAX_IMAGE_SIDE).unwrap_or(MAX_SIDE);
    decode_limited(bytes, "image", max_side).map(to_image)
}

/// Decodes an image whose sides have at most `max_side` pixels, which is checked before its pixels are read.
fn decode_limited(bytes: &[u8], field: &str, max_side: u32) -> Result<DynamicImage> {
    let broken = |cause: ImageError| {
        let message = match cause {
            ImageError::Limits(_) => format!("'{field}' takes too much memory to decode. Send a smaller image."),
            _ => format!("'{field}' is not a complete image. Send a whole PNG, JPEG or WebP."),
        };
        Error::invalid(field, message).with_cause(cause)
    };
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(Error::internal)?;
    if !matches!(reader.format(), Some(ImageFormat::Png | ImageFormat::Jpeg | ImageFormat::WebP)) {
        return Err(Error::invalid(
            field,
            format!("'{field}' is not in a supported image format. Send a PNG, JPEG or WebP."),
        ));
    }
    let ends_early = |name: &str| {
        let text = format!("'{field}' is not a complete image: the {name} file ends early. Send the whole file.");
        Error::invalid(field, text)
    };
    let padded = match reader.format() {
        Some(ImageFormat::Jpeg) => Some(jpeg::padded(bytes).ok_or_else(|| ends_early("JPEG"))?),
        Some(ImageFormat::WebP) if !has_whole_riff(bytes) => return Err(ends_early("WebP")),
        _ => None,
    };
    reader.limits(limits());
    let mut decoder = reader.into_decoder().map_err(broken)?;
    let (width, height) = decoder.dimensions();
    if width.max(height) > max_side || u64::from(width) * u64::from(height) > MAX_PIXELS {
        let text = format!(
            "'{field}' has {width}x{height} pixels; at most {max_side} per side and {MAX_PIXELS} in total are allowed. Resize it."
        );
        return Err(Error::invalid(field, text));
    }
    // Cameras store the rotation as metadata.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let mut image = DynamicImage::from_decoder(decoder).map_err(broken)?;
    if padded.is_some_and(|padded| decode_jpeg(&padded).as_ref() != Some(&image)) {
        return Err(ends_early("JPEG"));
    }
    image.apply_orientation(orientation);
    Ok(image)
}

fn limits() -> Limits {
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(MAX_DECODE_MEMORY);
    limits
}

fn decode_jpeg(bytes: &[u8]) -> Option<DynamicImage> {
    let mut reader = ImageReader::with_format(Cursor::new(bytes), ImageFormat::Jpeg);
    reader.limits(limits());
    reader.decode().ok()
}

/// Checks that a RIFF file, such as one of WebP, has the length in its header.
fn has_whole_riff(bytes: &[u8]) -> bool {
    let length = bytes.get(4..8).and_then(|length| length.first_chunk()).map(|length| u32::from_le_bytes(*length));
    length.is_some_and(|length| bytes.len() as u64 >= u64::from(length) + 8)
}

/// The pixels of a decoded image, without transparency.
fn to_image(image: DynamicImage) -> Image {
    let rgb = image.into_rgb8();
    let [width, height] = [rgb.width(), rgb.height()].map(|side| side as usize);
    Image { width, height, rgb: rgb.into_raw() }
}

#[cfg(test)]
mod tests {
    use image::{DynamicImage, ImageFormat, Rgb, RgbImage};

    use super::{Output, decode, encode};
    use crate::engine::Image;
    use crate::service::stored_images::Format;

    fn image() -> Image {
        let rgb = (0..40 * 24 * 3).map(|at: u32| (at * 7 % 251) as u8).collect();
        Image { width: 40, height: 24, rgb }
    }

    #[test]
    fn png_and_webp_are_lossless_and_jpeg_is_close() {
        for format in Format::ALL {
            let bytes = encode(image(), [40, 24], Output { format, quality: 100 }).unwrap();
            let back = decode(&bytes, "image").unwrap().to_rgb8();
            assert_eq!(back.dimensions(), (40, 24));
            let furthest = back.as_raw().iter().zip(&image().rgb).map(|(one, other)| one.abs_diff(*other)).max();
            let allowed = if format == Format::Jpeg { 60 } else { 0 };
            assert!(furthest.unwrap() <= allowed, "{format:?}: {furthest:?}");
        }
    }

    #[test]
    fn a_lower_quality_makes_a_smaller_jpeg() {
        let sizes = [0, 30, 100]
            .map(|quality| encode(image(), [40, 24], Output { format: Format::Jpeg, quality }).unwrap().len());
        assert!(sizes.is_sorted() && sizes[0] < sizes[2], "{sizes:?}");
    }

    #[test]
    fn an_image_is_scaled_to_the_requested_size() {
        let plain = Image { width: 40, height: 24, rgb: [10, 20, 30].repeat(40 * 24) };
        let bytes = encode(plain, [90, 48], Output { format: Format::Png, quality: 100 }).unwrap();
        let back = decode(&bytes, "image").unwrap().to_rgb8();
        assert_eq!(back.dimensions(), (90, 48));
        assert!(back.pixels().all(|pixel| pixel.0 == [10, 20, 30]));
    }

    #[test]
    fn bytes_that_do_not_match_the_size_are_an_error() {
        let wrong = Image { width: 41, ..image() };
        assert!(encode(wrong, [40, 24], Output { format: Format::Png, quality: 100 }).is_err());
    }

    #[test]
    fn damaged_or_unsupported_files_are_rejected_by_parameter_name() {
        let whole = encode(image(), [40, 24], Output { format: Format::Png, quality: 100 }).unwrap();
        let gif = b"GIF89a\x01\0\x01\0\0\0\0;".to_vec();
        for bytes in [Vec::new(), b"hello".to_vec(), gif, whole[..whole.len() / 2].to_vec(), whole[..20].to_vec()] {
            let error = decode(&bytes, "mask").unwrap_err();
            assert_eq!((error.code().status(), error.param_name()), (400, Some("mask")), "{error}");
        }
    }

    #[test]
    fn a_jpeg_or_webp_file_that_lacks_data_is_rejected_even_with_its_end_marker() {
        for quality in [1, 30, 75, 100] {
            let whole = encode(image(), [400, 240], Output { format: Format::Jpeg, quality }).unwrap();
            for more in [&[][..], b"\0\0", b"metadata \xFF\xD8"] {
                decode(&[&whole, more].concat(), "image").unwrap();
            }
            for share in [30, 60, 90, 99] {
                let cut = &whole[..whole.len() * share / 100];
                for end in [&[][..], b"\xFF\xD9", b"\xFF\xFF\xD9", b"\0\0\0\0\xFF\xD9"] {
                    let error = decode(&[cut, end].concat(), "image").unwrap_err();
                    assert!(error.message().contains("JPEG file ends early"), "{quality} {share} {end:?}: {error}");
                }
            }
        }
        let whole = encode(image(), [40, 24], Output { format: Format::WebP, quality: 100 }).unwrap();
        for length in [whole.len() - 1, whole.len() - 2, whole.len() / 2] {
            let error = decode(&whole[..length], "image").unwrap_err();
            assert!(error.message().contains("WebP file ends early"), "{error}");
        }
    }

    #[test]
    fn a_small_file_with_huge_declared_dimensions_is_rejected_before_decoding() {
        let mut file = std::io::Cursor::new(Vec::new());
        let row = RgbImage::from_pixel(9000, 2, Rgb([0; 3]));
        DynamicImage::ImageRgb8(row).write_to(&mut file, ImageFormat::Png).unwrap();
        let mut bytes = file.into_inner();
        assert!(decode(&bytes, "image").unwrap_err().message().contains("9000x2"));
        // The header's width and height, and its checksum.
        bytes[16..24].copy_from_slice(&[0, 0, 0x1f, 0xff, 0, 0, 0x1f, 0xff]);
        let check = crc32fast::hash(&bytes[12..29]).to_be_bytes();
        bytes[29..33].copy_from_slice(&check);
        let error = decode(&bytes, "image").unwrap_err();
        assert!(error.message().contains("8191x8191"), "{error}");
    }
}
