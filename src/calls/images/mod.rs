//! Pictures, from a typed request to files.

mod codec;
mod source;

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::Semaphore;

pub use codec::{Output, encode};
pub use source::{Change, Original};

use super::chat::{fail, refuse};
use super::models::{MEMORY_FREED, blocking, refuse_load};
use crate::clock_rng::{ClockRng, Timestamp};
use crate::engine::{
    Engine, Failure, Image, ImageEvent, ImageEvents, ImageModel, ImageRequest, InitImage, SchedulerName,
};
use crate::error::{Code, Error, Result};
use crate::ids::ImagesId;
use crate::service::access::{Access, Scope};
use crate::service::places::{Place, Places};
use crate::service::usage::{Outcome, Receipt};

/// Requests that may be prepared at once, of all and of one project; more are refused, not piled up.
const PREPARING: usize = 64;
const PREPARING_OF_ONE: usize = 32;
/// Sent pictures that are read at once: each may take hundreds of megabytes for a moment. Others wait.
const READING: usize = 2;
/// Requests whose pictures may be arriving, of all and of one project; each holds its files in memory.
const ARRIVING: usize = 16;
const ARRIVING_OF_ONE: usize = 4;
/// Seeds that are drawn stay below this: numbers that every JSON reader keeps exactly.
const DRAWN_SEEDS: u64 = 1 << 53;
/// Seeds are below this, so that they are positive in 64 bits.
const SEEDS: u64 = 1 << 63;

/// Has pictures painted.
pub struct Images {
    engine: Engine,
    clock_rng: Arc<dyn ClockRng>,
    preparing: Arc<Places>,
    reading: Arc<Semaphore>,
    arriving: Arc<Places>,
}

/// What a caller asks for; `http` has checked the form of each field.
pub struct ImageCall {
    pub model: String,
    pub prompt: String,
    pub negative_prompt: Option<String>,
    /// Width and height; `None`: the model's, or the original's.
    pub size: Option<[usize; 2]>,
    pub count: u32,
    /// Of the first picture; `None` takes a fresh one. The next ones have the numbers that follow.
    pub seed: Option<u64>,
    /// `None` here and below is what the model is meant for.
    pub steps: Option<usize>,
    pub guidance: Option<f32>,
    pub scheduler: Option<SchedulerName>,
    /// Adapters by name, and how much each counts.
    pub lora: Vec<(String, f32)>,
    /// Pictures to be shown of each on its way.
    pub previews: usize,
    /// What to begin with.
    pub original: Option<Original>,
}

/// Pictures that are being painted. Dropping it cancels what is not.
pub struct Running {
    pub id: ImagesId,
    pub created: Timestamp,
    pub model: String,
    /// Width and height of each.
    pub size: [usize; 2],
    /// One for each.
    pub seeds: Vec<u64>,
    events: ImageEvents,
    finished: u64,
    bill: Arc<Receipt>,
}

impl Images {
    pub fn new(engine: Engine, clock_rng: Arc<dyn ClockRng>) -> Self {
        let preparing = Places::new("prompts of images are being prepared", PREPARING, PREPARING_OF_ONE);
        let arriving = Places::new("images are being uploaded", ARRIVING, ARRIVING_OF_ONE);
        Self { engine, clock_rng, preparing, reading: Arc::new(Semaphore::new(READING)), arriving }
    }

    /// Lets pictures arrive, before anything of them is read.
    /// They count for the client's `address`, if that is known.
    pub fn receive(&self, access: &Access, address: Option<IpAddr>) -> Result<Place> {
        access.require(access.project(), Scope::Inference)?;
        self.arriving.take_from(access.project(), address)
    }

    /// Resolves the model, reads the original and hands the request to the engine. Refuses at once what the model
    /// cannot do, and when its queue is full. What is painted goes on `bill`.
    pub async fn start(&self, access: &Access, mut call: ImageCall, bill: Arc<Receipt>) -> Result<Running> {
        access.require_model(&call.model)?;
        let (model, permit) = self.load(access, &call.model).await?;
        bill.model(model.id());
        check_scheduler(&model, call.scheduler)?;
        if !call.lora.is_empty() {
            let (model, asked) = (Arc::clone(&model), call.lora.clone());
            blocking(move || model.check_adapters(&asked).map_err(|why| Error::invalid("lora", why))).await?;
        }
        let steps = call.steps.unwrap_or_else(|| model.default_steps());
        let (size, source) = match call.original.take() {
            None => (size(&model, call.size, None)?, None),
            Some(original) => self.read(&model, original, call.size, steps).await?,
        };
        let seeds = seeds(call.seed.unwrap_or_else(|| self.draw_seed()), call.count);
        let request = ImageRequest {
            prompt: call.prompt,
            negative_prompt: call.negative_prompt,
            size,
            steps,
            guidance: call.guidance.unwrap_or_else(|| model.default_guidance()),
            scheduler: call.scheduler,
            seeds: seeds.clone(),
            init_image: source,
            lora: call.lora,
            previews: call.previews,
            tenant: u128::from_be_bytes(access.project().to_bytes()),
        };
        let engine = self.engine.clone();
        let generate = move || engine.generate_images(&model, request).map_err(|refused| refuse(model.id(), refused));
        let events = blocking(generate).await?;
        drop(permit);
        let (id, created) = (ImagesId::generate(&*self.clock_rng), self.clock_rng.now());
        Ok(Running { id, created, model: call.model, size, seeds, events, finished: 0, bill })
    }

    /// The model, and the place among those that are prepared. A load that has begun keeps the place even if nobody
    /// waits for it any longer.
    async fn load(&self, access: &Access, id: &str) -> Result<(Arc<ImageModel>, Place)> {
        let permit = self.preparing.take(access.project())?;
        let (engine, id) = (self.engine.clone(), id.to_owned());
        blocking(move || Ok((engine.models().load_image_model(&id).map_err(|error| refuse_load(&id, &error))?, permit)))
            .await
    }

    /// What to begin with, and the size to paint in.
    async fn read(
        &self,
        model: &Arc<ImageModel>,
        original: Original,
        asked: Option<[usize; 2]>,
        steps: usize,
    ) -> Result<([usize; 2], Option<InitImage>)> {
        let turn = self.reading.clone().acquire_owned().await.map_err(Error::internal)?;
        let model = Arc::clone(model);
        blocking(move || {
            let _turn = turn;
            let sent = original.read()?;
            let size = size(&model, asked, Some(sent.size()))?;
            Ok((size, Some(sent.fit(size, steps)?)))
        })
        .await
    }

    fn draw_seed(&self) -> u64 {
        let mut bytes = [0; 8];
        self.clock_rng.fill(&mut bytes);
        u64::from_le_bytes(bytes) % DRAWN_SEEDS
    }
}

impl Running {
    /// What happens next; `None` when every picture is painted. May be dropped and called again.
    pub async fn next(&mut self) -> Option<Result<ImageEvent>> {
        if self.is_done() {
            return None;
        }
        let Some(event) = self.events.next().await else {
            return Some(Err(Error::internal("the engine closed a ticket before its end")));
        };
        let finished = match &event {
            Ok(event) => usize::from(matches!(event, ImageEvent::Done { .. })),
            Err(_) => self.events.leave(),
        };
        self.count(finished);
        Some(event.map_err(fail_generation))
    }

    /// Whether every picture is painted.
    pub fn is_done(&self) -> bool {
        self.finished >= self.seeds.len() as u64
    }

    /// Puts finished pictures on the bill.
    fn count(&mut self, pictures: usize) {
        self.finished += pictures as u64;
        self.bill.images(self.finished);
    }

    /// Waits for all pictures; their files, in order.
    pub async fn whole(&mut self, output: Output) -> Result<Vec<Vec<u8>>> {
        let mut files: Vec<Option<Vec<u8>>> = vec![None; self.seeds.len()];
        while let Some(event) = self.next().await {
            let ImageEvent::Done { index, image } = event? else { continue };
            let file = write(image, output).await?;
            if let Some(place) = files.get_mut(index) {
                *place = Some(file);
            }
        }
        let files: Option<Vec<_>> = files.into_iter().collect();
        files.ok_or_else(|| Error::internal("the engine painted one picture twice and another not at all"))
    }

    /// Puts what was painted on the disk; before the last byte of a stream. Whole answers are closed by whoever
    /// sends them.
    pub async fn close(&self, outcome: Outcome) -> Result<()> {
        self.bill.close(outcome).await
    }
}

impl Drop for Running {
    /// A client that left is billed for the pictures that were finished, received or not.
    fn drop(&mut self) {
        let unreceived = self.events.leave();
        self.count(unreceived);
    }
}

/// The file of a picture, written off the async threads.
pub async fn write(image: Image, output: Output) -> Result<Vec<u8>> {
    blocking(move || encode(image, output)).await
}

/// The size to paint in: what was asked for if the model can, else what suits the original, else the model's own.
fn size(model: &ImageModel, asked: Option<[usize; 2]>, original: Option<[usize; 2]>) -> Result<[usize; 2]> {
    match (asked, original) {
        (Some(size), _) => model.check_size(size).map(|()| size).map_err(|why| Error::invalid("size", why)),
        (None, Some(own)) => Ok(source::near(own, model.default_size(), |size| model.check_size(size).is_ok())),
        (None, None) => Ok(model.default_size()),
    }
}

fn check_scheduler(model: &ImageModel, asked: Option<SchedulerName>) -> Result<()> {
    let can = model.schedulers();
    match asked.filter(|asked| !can.is_empty() && !can.contains(asked)) {
        None => Ok(()),
        Some(asked) => {
            let names: Vec<String> = can.iter().map(SchedulerName::to_string).collect();
            let text = format!(
                "'scheduler' is '{asked}', with which the model '{}' cannot be run. It can with: {}.",
                model.id(),
                names.join(", ")
            );
            Err(Error::invalid("scheduler", text))
        }
    }
}

/// `count` seeds from `first` on; after the last there is comes zero.
fn seeds(first: u64, count: u32) -> Vec<u64> {
    (0..u64::from(count)).map(|place| first.wrapping_add(place) % SEEDS).collect()
}

fn fail_generation(failure: Failure) -> Error {
    match failure {
        Failure::NoMemory => Error::new(
            Code::Overloaded,
            "The memory for painting is held by other models in use. Try again when their answers have ended; the operator can unload a model or give the server more with --memory.",
        )
        .retry_after(MEMORY_FREED),
        other => fail(other),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn seeds_follow_each_other_and_begin_again_at_zero() {
        assert_eq!(super::seeds(7, 3), [7, 8, 9]);
        assert_eq!(super::seeds((1 << 63) - 1, 3), [(1 << 63) - 1, 0, 1]);
        assert_eq!(super::seeds(u64::MAX, 2), [(1 << 63) - 1, 0]);
    }
}
