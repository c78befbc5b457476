//! Decides which image is generated next, as a pure state machine.
//!
//! Images are generated one at a time. The tenant that was served least is next, and of its requests the one that was
//! served least. A new tenant starts at the lowest served amount among those waiting.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::events::{Sender, StallDetector, channel};
use super::{ImageEvents, ImageModel, ImageRequest, PromptIds};
use crate::engine::error::Failure;
use crate::engine::text::scheduler::{RequestId, Tenant};
use crate::models::diffusion::pipeline::PromptEmbeds;

/// Weight of the newest image in the moving average of speed.
const NEWEST_WEIGHT: f64 = 0.3;
/// Finished images that may wait for the client before the request is paused.
const MAX_UNRECEIVED: usize = 2;

/// A request and its progress.
pub struct ImageJob<M = ImageModel> {
    pub model: Arc<M>,
    pub request: ImageRequest,
    pub prompts: PromptIds,
    /// The encoded prompts, once computed.
    pub embeds: Option<PromptEmbeds>,
    /// Index of the next image.
    pub next: usize,
    pub sender: Sender,
    served: f64,
}

impl<M> ImageJob<M> {
    /// Cost of an image: steps times pixels.
    pub fn work(&self) -> f64 {
        let [width, height] = self.request.size;
        (width * height * self.request.steps) as f64
    }

    /// Images that are not generated yet.
    fn remaining(&self) -> usize {
        self.request.seeds.len().saturating_sub(self.next)
    }

    pub fn fail(self, failure: Failure) {
        self.sender.send(Err(failure));
    }
}

/// The queue of image requests.
pub struct ImageScheduler<M = ImageModel> {
    requests: BTreeMap<RequestId, ImageJob<M>>,
    next: RequestId,
    /// Stall detectors, also for requests whose images are all generated.
    watches: Vec<StallDetector>,
    /// Cost served to each tenant with requests.
    served: HashMap<Tenant, f64>,
    /// Moving average of seconds per unit of cost; `None` before the first image.
    seconds_per_work: Option<f64>,
}

impl<M> ImageScheduler<M> {
    pub fn new() -> Self {
        let (requests, watches, served) = (BTreeMap::new(), Vec::new(), HashMap::new());
        Self { requests, next: 0, watches, served, seconds_per_work: None }
    }

    /// An empty scheduler. Request IDs continue from this one.
    pub fn new_empty(&self) -> Self {
        Self { next: self.next, ..Self::new() }
    }

    /// All requests.
    pub fn into_jobs(self) -> impl Iterator<Item = ImageJob<M>> {
        self.requests.into_values()
    }

    /// Images waiting, in total or for a tenant.
    pub fn waiting(&self, of: Option<Tenant>) -> usize {
        let jobs = self.requests.values().filter(|one| of.is_none_or(|tenant| one.request.tenant == tenant));
        jobs.map(ImageJob::remaining).sum()
    }

    /// Estimated seconds until the queue is empty; `None` before the first image.
    pub fn seconds(&self) -> Option<f64> {
        Some(
            self.requests.values().map(|one| one.work() * one.remaining() as f64).sum::<f64>()
                * self.seconds_per_work?,
        )
    }

    pub fn push(&mut self, model: Arc<M>, request: ImageRequest, prompts: PromptIds, now: Duration) -> ImageEvents {
        let (sender, events, watch) = channel(now);
        self.watches.push(watch);
        let lowest = self.served.values().copied().min_by(f64::total_cmp).unwrap_or(0.);
        self.served.entry(request.tenant).or_insert(lowest);
        let own = self.requests.values().filter(|one| one.request.tenant == request.tenant);
        let served = own.map(|one| one.served).min_by(f64::total_cmp).unwrap_or(0.);
        self.insert(ImageJob { model, request, prompts, embeds: None, next: 0, sender, served });
        events
    }

    fn insert(&mut self, job: ImageJob<M>) {
        self.requests.insert(self.next, job);
        self.next += 1;
    }

    /// The next request, for one image. Requests of slow clients wait.
    pub fn next_job(&mut self) -> Option<ImageJob<M>> {
        let served = |one: &ImageJob<M>| self.served.get(&one.request.tenant).copied().unwrap_or(0.);
        let rank = |one: &ImageJob<M>| (served(one), one.served);
        let ready = self.requests.iter().filter(|(_, one)| one.sender.unreceived() < MAX_UNRECEIVED);
        let next = ready.min_by(|(_, one), (_, other)| {
            let ((a, b), (c, d)) = (rank(one), rank(other));
            a.total_cmp(&c).then(b.total_cmp(&d))
        });
        let id = *next?.0;
        self.requests.remove(&id)
    }

    /// Returns a request after one image that took `seconds`.
    pub fn requeue(&mut self, mut job: ImageJob<M>, seconds: f64) {
        let work = job.work();
        if seconds > 0. && work > 0. {
            let newest = seconds / work;
            self.seconds_per_work = Some(
                self.seconds_per_work
                    .map_or(newest, |seconds_per_work| seconds_per_work + (newest - seconds_per_work) * NEWEST_WEIGHT),
            );
        }
        job.next += 1;
        job.served += work;
        *self.served.entry(job.request.tenant).or_default() += work;
        if job.remaining() > 0 {
            self.insert(job);
        }
        self.reset_if_empty();
    }

    /// Drops events that were not received in time.
    pub fn drop_stalled(&mut self, now: Duration, timeout: Duration) {
        let watched = self.watches.len();
        self.watches.retain_mut(|watch| watch.check(now, timeout));
        if self.watches.len() < watched {
            self.drop_cancelled();
        }
    }

    /// Whether a client may still have images to receive.
    pub fn has_receivers(&self) -> bool {
        !self.watches.is_empty()
    }

    /// Drops requests whose clients are gone.
    pub fn drop_cancelled(&mut self) {
        self.requests.retain(|_, one| !one.sender.is_closed());
        self.reset_if_empty();
    }

    /// Fails waiting requests; `started`: also those with some images generated.
    pub fn fail_all(&mut self, failure: &Failure, started: bool) {
        let failed = self.requests.extract_if(.., |_, one| started || one.next == 0);
        failed.for_each(|(_, one)| one.fail(failure.clone()));
        self.reset_if_empty();
    }

    /// Served amounts are meaningless once the queue is empty.
    fn reset_if_empty(&mut self) {
        if self.requests.is_empty() {
            self.served.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::image::{Image, ImageEvent};

    fn request(tenant: Tenant, images: usize) -> ImageRequest {
        ImageRequest {
            prompt: String::new(),
            negative_prompt: None,
            size: [8, 8],
            steps: 10,
            guidance: 1.,
            scheduler: None,
            seeds: vec![0; images],
            init_image: None,
            lora: Vec::new(),
            previews: 0,
            tenant,
        }
    }

    fn push(images: &mut ImageScheduler<()>, request: ImageRequest) -> ImageEvents {
        images.push(Arc::default(), request, Vec::new(), Duration::ZERO)
    }

    /// The order in which images are generated, with their tenants.
    fn run_all(images: &mut ImageScheduler<()>) -> Vec<(Tenant, usize)> {
        let mut order = Vec::new();
        while let Some(job) = images.next_job() {
            order.push((job.request.tenant, job.next));
            images.requeue(job, 0.001);
        }
        order
    }

    #[test]
    fn tenants_take_turns() {
        let mut images = ImageScheduler::<()>::new();
        let _receivers = [request(1, 3), request(2, 2)].map(|request| push(&mut images, request));
        assert_eq!(images.waiting(None), 5);
        assert_eq!(images.waiting(Some(2)), 2);
        assert_eq!(run_all(&mut images), [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2)]);
        assert_eq!(images.waiting(None), 0);
    }

    #[test]
    fn cancelled_requests_are_dropped() {
        let mut images = ImageScheduler::<()>::new();
        drop(push(&mut images, request(1, 3)));
        let _stays = push(&mut images, request(1, 1));
        images.drop_cancelled();
        assert_eq!(images.waiting(None), 1);
    }

    #[test]
    fn a_closing_queue_finishes_begun_requests() {
        let mut images = ImageScheduler::<()>::new();
        let mut started = push(&mut images, request(1, 2));
        let taken = images.next_job().unwrap();
        images.requeue(taken, 0.001);
        let mut waits = push(&mut images, request(2, 1));
        images.fail_all(&Failure::ShuttingDown, false);
        assert_eq!(waits.try_next(), Some(Some(Err(Failure::ShuttingDown))));
        assert_eq!((images.waiting(None), started.try_next()), (1, None));
        images.fail_all(&Failure::ShuttingDown, true);
        assert_eq!(started.try_next(), Some(Some(Err(Failure::ShuttingDown))));
    }

    #[test]
    fn stalled_clients_get_no_more_images() {
        let mut images = ImageScheduler::<()>::new();
        let [mut slow, mut quick] = [request(1, 4), request(2, 4)].map(|request| push(&mut images, request));
        let mut generated = Vec::new();
        while let Some(job) = images.next_job() {
            let rgb = vec![0; 3];
            let image = Image { width: 1, height: 1, rgb };
            job.sender.send(Ok(ImageEvent::Done { index: job.next, image }));
            generated.push(job.request.tenant);
            images.requeue(job, 0.001);
            quick.try_next();
        }
        assert_eq!(generated, [1, 2, 1, 2, 2, 2]);
        let timeout = Duration::from_secs(60);
        images.drop_stalled(timeout, timeout);
        assert_eq!(images.waiting(Some(1)), 2);
        images.drop_stalled(timeout * 2, timeout);
        assert_eq!((images.waiting(None), images.has_receivers()), (0, false));
        assert_eq!(slow.try_next(), Some(Some(Err(Failure::ClientStalled))));
        assert_eq!(slow.close(), 2, "they were generated");
    }
}
