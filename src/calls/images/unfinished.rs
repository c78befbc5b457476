//! The metered amount of an image before it is finished.
//!
//! Images are metered in whole numbers. An unfinished image counts by its steps, rounded: from half of them on, it is an image. A
//! preview that is made later shows the image, so a client that has it may well do without the image itself. Images of few steps
//! are those of distilled models, which paint a whole image in every step.
//!
//! A fraction would change the largest tables and the API. A request that delivers something worth the whole is
//! recorded before that, and its record is replaced at its end: one request stays one record.

use crate::engine::ImageEvent;

/// Max steps of an image that counts from its first step on.
const FEW_STEPS: usize = 8;

/// The image of a request that is being generated.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnfinishedImage {
    counts: bool,
    /// A preview that counts as the image was sent, or is about to be.
    is_shown: bool,
}

impl UnfinishedImage {
    /// Follows the events of a request. `scheduled`: the steps of a whole image. An edit runs only the last ones of them, from an
    /// image that it is given.
    pub fn observe(&mut self, event: &ImageEvent, scheduled: usize) {
        match event {
            ImageEvent::Step { step, steps, .. } => self.counts = counts(*step, *steps, scheduled),
            ImageEvent::Done { .. } => *self = Self::default(),
        }
    }

    /// How many images it counts.
    pub fn images(self) -> u64 {
        u64::from(self.counts)
    }

    /// A preview is about to be sent. Whether it counts as the image.
    pub fn show(&mut self) -> bool {
        self.is_shown |= self.counts;
        self.counts
    }

    /// The request fails: the image counts only if it was shown.
    pub fn fail(&mut self) {
        self.counts = self.is_shown;
    }
}

/// Whether an image counts after `step` of `steps`.
fn counts(step: usize, steps: usize, scheduled: usize) -> bool {
    let (left, whole) = (steps.saturating_sub(step), steps.max(scheduled));
    whole <= FEW_STEPS || left * 2 <= whole
}

#[cfg(test)]
mod tests {
    use super::{UnfinishedImage, counts};
    use crate::engine::{Image, ImageEvent};

    fn first(steps: usize, scheduled: usize) -> usize {
        (1..=steps).find(|step| counts(*step, steps, scheduled)).unwrap()
    }

    #[test]
    fn an_image_counts_from_half_of_its_steps_on() {
        assert_eq!([9, 10, 20, 50, 51, 500].map(|steps| first(steps, steps)), [5, 5, 10, 25, 26, 250]);
    }

    #[test]
    fn an_image_of_few_steps_counts_from_the_first_one_on() {
        assert_eq!([1, 4, 8].map(|steps| first(steps, steps)), [1, 1, 1]);
    }

    #[test]
    fn the_steps_that_an_edit_leaves_out_count_as_done() {
        assert_eq!([(40, 50), (30, 50), (25, 50), (5, 50)].map(|(steps, all)| first(steps, all)), [15, 5, 1, 1]);
    }

    #[test]
    fn a_failed_request_is_charged_for_an_image_that_was_shown() {
        let step = |step| ImageEvent::Step { index: 0, step, steps: 10, preview: None };
        let mut image = UnfinishedImage::default();
        image.observe(&step(4), 10);
        assert!(!image.show());
        image.observe(&step(5), 10);
        assert_eq!(image.images(), 1);
        let mut hidden = image;
        hidden.fail();
        assert_eq!(hidden.images(), 0);
        assert!(image.show());
        image.fail();
        assert_eq!(image.images(), 1);
        image.observe(&ImageEvent::Done { index: 0, image: Image { width: 0, height: 0, rgb: Vec::new() } }, 10);
        assert_eq!(image.images(), 0, "the finished image counts instead");
    }
}
