//! The image sizes that a model supports, and those that it is good at.
//!
//! A diffusion model draws well near the size of its training images. Far above it, objects repeat, and time and memory
//! grow with the square of the area. Sides are therefore limited to twice the training size.
//!
//! At 1024 × 1024, a model for 64 × 64 pixels took 338 s and drew the same object many times. The limit is per side and
//! not by area, because objects repeat along the longer side. `resize: true` is a request for scaling. It is not the
//! default, because a scaled image has less detail than its size promises.

use outpost_models::diffusion::pipeline::Components;

/// Limits for the pixels along a side.
pub const MIN_SIDE: usize = 16;
pub const MAX_SIDE: usize = 2048;
/// A side may be this many times the longer side of the training images.
const MAX_UPSIZE: usize = 2;

/// Width to height. Both orientations of each are listed.
const ASPECT_RATIOS: [[usize; 2]; 3] = [[4, 3], [3, 2], [16, 9]];
/// Models that were trained on smaller images draw well only at that size.
const MIN_VARIED_SIDE: usize = 256;
/// Preferred sizes are multiples of an eighth of the training size, up to this.
const MAX_STEP: usize = 64;
/// The largest difference between the logarithms of a preferred aspect ratio and the requested one.
const MAX_DISTORTION: f64 = 0.2;

/// The sizes of a model, as width and height in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageSizes {
    training: [usize; 2],
    /// Width and height must be multiples of this.
    multiple: usize,
    max_side: usize,
}

impl ImageSizes {
    pub fn of(components: &Components) -> Self {
        let [height, width] = components.default_size();
        Self::new([width, height], components.size_multiple(), components.max_side())
    }

    fn new(training: [usize; 2], multiple: usize, limit: Option<usize>) -> Self {
        let [width, height] = training;
        let max_side = (width.max(height) * MAX_UPSIZE).min(limit.unwrap_or(MAX_SIDE)).min(MAX_SIDE);
        Self { training, multiple, max_side }
    }

    /// The size of the training images.
    pub fn training(&self) -> [usize; 2] {
        self.training
    }

    /// Checks that the model supports this size; errors say why not.
    pub fn check(&self, [width, height]: [usize; 2]) -> Result<(), String> {
        let Self { multiple, max_side, training: [training_width, training_height] } = *self;
        let fits = |side: usize| (MIN_SIDE..=max_side).contains(&side) && side.is_multiple_of(multiple);
        match fits(width) && fits(height) {
            true => Ok(()),
            false => Err(format!(
                "the model was trained on images of {training_width}x{training_height} pixels; width and height must be multiples of {multiple} from {MIN_SIDE} to {max_side}"
            )),
        }
    }

    /// The sizes that the model is good at: first that of its training images, then, unless those are small, common
    /// aspect ratios with about as many pixels.
    pub fn preferred(&self) -> Vec<[usize; 2]> {
        let mut sizes = vec![self.training];
        if self.training.into_iter().any(|side| side < MIN_VARIED_SIDE) {
            return sizes;
        }
        for [long, short] in ASPECT_RATIOS {
            for ratio in [[long, short], [short, long]] {
                let size = self.closest_to(ratio).filter(|size| !sizes.contains(size));
                sizes.extend(size);
            }
        }
        sizes
    }

    /// The size at which the model is best for the aspect ratio of `size`; `None` if it supports none that is similar.
    pub fn best_for(&self, size: [usize; 2]) -> Option<[usize; 2]> {
        if self.preferred().contains(&size) {
            return Some(size);
        }
        self.closest_to(size).filter(|found| distortion(*found, size) <= MAX_DISTORTION)
    }

    /// The supported size whose aspect ratio and number of pixels are the closest to `ratio` and the training images.
    fn closest_to(&self, ratio: [usize; 2]) -> Option<[usize; 2]> {
        let step = (self.training.into_iter().max()? / 8).min(MAX_STEP);
        let step = (step / self.multiple).max(1) * self.multiple;
        let area = |[width, height]: [usize; 2]| width as f64 * height as f64;
        // The aspect ratio counts three times, because a difference in it is visible.
        let difference = |size| 3. * distortion(size, ratio) + (area(size) / area(self.training)).ln().abs();
        let sides = || (step..=self.max_side).step_by(step);
        let sizes = sides().flat_map(|width| sides().map(move |height| [width, height]));
        sizes
            .filter(|size| self.check(*size).is_ok())
            .min_by(|one, other| difference(*one).total_cmp(&difference(*other)))
    }
}

/// The difference between the logarithms of two aspect ratios.
fn distortion([width, height]: [usize; 2], [other_width, other_height]: [usize; 2]) -> f64 {
    ((width * other_height) as f64 / (height * other_width) as f64).ln().abs()
}

#[cfg(test)]
mod tests {
    use super::ImageSizes;

    #[test]
    fn preferred_sizes_have_common_aspect_ratios_and_the_area_of_training() {
        let cases: [(usize, usize, &[[usize; 2]]); 3] = [
            (64, 8, &[[64, 64]]),
            (512, 8, &[[512, 512], [576, 448], [448, 576], [576, 384], [384, 576], [704, 384], [384, 704]]),
            (1024, 16, &[[1024, 1024], [1216, 896], [896, 1216], [1280, 832], [832, 1280], [1344, 768], [768, 1344]]),
        ];
        for (side, multiple, sizes) in cases {
            let model = ImageSizes::new([side; 2], multiple, None);
            assert_eq!(model.preferred(), sizes);
            for size in sizes {
                assert_eq!((model.check(*size), model.best_for(*size)), (Ok(()), Some(*size)));
            }
        }
    }

    #[test]
    fn sides_are_at_most_twice_those_of_training() {
        let small = ImageSizes::new([64, 64], 8, None);
        small.check([128, 16]).unwrap();
        for size in [[136, 64], [64, 136], [60, 64], [64, 8], [0, 64]] {
            let why = small.check(size).unwrap_err();
            assert!(why.contains("64x64") && why.contains("multiples of 8 from 16 to 128"), "{why}");
        }
        let large = ImageSizes::new([1024, 1536], 16, None);
        large.check([2048, 2048]).unwrap();
        assert!(large.check([2064, 1024]).is_err());
        assert!(ImageSizes::new([1024, 1024], 16, Some(1536)).check([1552, 1024]).is_err());
    }

    #[test]
    fn other_sizes_are_generated_at_a_size_with_their_aspect_ratio() {
        let small = ImageSizes::new([64, 64], 8, None);
        for (size, best) in [
            ([1024, 1024], Some([64, 64])),
            ([128, 128], Some([64, 64])),
            ([1536, 1024], Some([72, 48])),
            ([1024, 1792], Some([48, 88])),
            ([1000, 999], Some([64, 64])),
            ([2048, 16], None),
        ] {
            assert_eq!(small.best_for(size), best, "{size:?}");
        }
    }
}
