//! Image generation, from a typed request to encoded files.

mod codec;
mod jpeg;
mod quality;
mod running;
mod size;
mod source;
mod unfinished;

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::Semaphore;

pub use codec::{Output, encode};
pub use quality::Quality;
pub use running::RunningImages;
pub use size::size_text;
pub use source::{EditKind, SourceImage};

use crate::calls::blocking::run_blocking;
use crate::calls::errors;
use crate::calls::models::model_name::authorize_name;
use crate::calls::upstream::errors::unsupported;
use crate::calls::upstream::image_request::{self as remote, ImageRequest as UpstreamImageRequest};
use crate::calls::upstream::models::{ServedModel, UpstreamModels};
use crate::calls::upstream::request_fields::json_call;
use crate::calls::upstream::response_limits;
use crate::clock_rng::ClockRng;
use crate::engine::{
    Engine, Image, ImageEvent, ImageEvents, ImageModel, ImageRequest, InitImage, MAX_IMAGE_SIDE, SchedulerName,
};
use crate::error::{Code, Error, Result};
use crate::ids::ImagesId;
use crate::service::access::{Access, Scope};
use crate::service::limits::concurrency_limit::{ConcurrencyLimit, Slot};
use crate::service::usage::UsageRecorder;
use crate::upstream::{Api, Kind, UpstreamModel};
use size::{ImageSize, check_upstream_size};
use unfinished::UnfinishedImage;

/// Concurrent requests in preparation, in all and per project; more are refused.
const MAX_PREPARING: usize = 64;
const MAX_PREPARING_PER_PROJECT: usize = 32;
/// Source images decoded at once: each may briefly take hundreds of megabytes. Others wait.
const MAX_DECODING: usize = 2;
/// Concurrent uploads of source images, in all and per project; each holds its files in memory.
const MAX_UPLOADS: usize = 16;
const MAX_UPLOADS_PER_PROJECT: usize = 4;
/// Random seeds are below this, so that every JSON parser reads them exactly.
const RANDOM_SEEDS_BELOW: u64 = 1 << 53;
/// Seeds are below this, so that they are positive in 64 bits.
const SEEDS_BELOW: u64 = 1 << 63;

/// Runs image generation.
pub struct Images {
    engine: Engine,
    clock_rng: Arc<dyn ClockRng>,
    upstream: UpstreamModels,
    preparing: Arc<ConcurrencyLimit>,
    decoding: Arc<Semaphore>,
    uploads: Arc<ConcurrencyLimit>,
}

/// A request; `http` has validated each field on its own.
pub struct ImageCall {
    pub model: String,
    pub prompt: String,
    pub negative_prompt: Option<String>,
    /// Width and height; `None`: the model's, or the original's.
    pub size: Option<[usize; 2]>,
    /// Lets the image be generated at another size and scaled.
    pub resize: bool,
    pub quality: Quality,
    pub count: u32,
    /// Seed of the first image; `None`: a random one. Further images use consecutive seeds.
    pub seed: Option<u64>,
    /// `None` here and below: the model's default.
    pub steps: Option<usize>,
    pub guidance: Option<f32>,
    pub scheduler: Option<SchedulerName>,
    /// LoRA adapters by name, with their weights.
    pub lora: Vec<(String, f32)>,
    /// Number of previews per image.
    pub previews: usize,
    /// The source image.
    pub original: Option<SourceImage>,
}

/// What is known of a request that the engine or an upstream model has accepted.
struct Submitted {
    /// Width and height of each image.
    size: [usize; 2],
    /// One per image; `None` if it is not known.
    seeds: Vec<Option<u64>>,
    /// The steps of a whole image.
    steps: usize,
    events: ImageEvents,
}

impl Images {
    pub fn new(engine: Engine, clock_rng: Arc<dyn ClockRng>, upstream: UpstreamModels) -> Self {
        let preparing =
            ConcurrencyLimit::new("prompts of images are being prepared", MAX_PREPARING, MAX_PREPARING_PER_PROJECT);
        let uploads = ConcurrencyLimit::new("images are being uploaded", MAX_UPLOADS, MAX_UPLOADS_PER_PROJECT);
        Self { engine, clock_rng, upstream, preparing, decoding: Arc::new(Semaphore::new(MAX_DECODING)), uploads }
    }

    /// Admits an upload of source images before any of it is read. It counts against the client's `address`, if known.
    pub fn receive(&self, access: &Access, address: Option<IpAddr>) -> Result<Slot> {
        access.require(access.project(), Scope::Inference)?;
        self.uploads.acquire_from(access.project(), address)
    }

    /// Resolves the model, decodes the source image and submits the request to the engine. Fails early if the model
    /// does not support the request or its queue is full. Usage is added to `recorder`.
    pub async fn start(
        &self,
        access: &Access,
        mut call: ImageCall,
        recorder: Arc<UsageRecorder>,
    ) -> Result<RunningImages> {
        authorize_name(&self.engine, access, &mut call.model)?;
        let acquire = || self.preparing.acquire(access.project());
        let model =
            self.upstream.serve::<ImageModel, _>(access, &call.model, &[Kind::Image], &recorder, acquire).await?;
        let (name, quality) = (call.model.clone(), call.quality);
        let Submitted { size, seeds, steps, events } = match model {
            ServedModel::Local(model, slot) => self.submit(access, model, slot, call).await?,
            ServedModel::Upstream(model) => self.submit_upstream(&model, call, &recorder).await?,
        };
        Ok(RunningImages {
            id: ImagesId::generate(&*self.clock_rng),
            created: self.clock_rng.now(),
            model: name,
            size,
            quality,
            seeds,
            steps,
            events,
            finished: 0,
            unfinished: UnfinishedImage::default(),
            recorder,
        })
    }

    /// Decodes the source image and submits a request to the engine.
    async fn submit(
        &self,
        access: &Access,
        model: Arc<ImageModel>,
        slot: Slot,
        mut call: ImageCall,
    ) -> Result<Submitted> {
        check_scheduler(&model, call.scheduler)?;
        if !call.lora.is_empty() {
            let (model, requested) = (Arc::clone(&model), call.lora.clone());
            run_blocking(move || model.check_adapters(&requested).map_err(|why| Error::invalid("lora", why))).await?;
        }
        let steps = call.steps.unwrap_or_else(|| call.quality.steps(model.default_steps()));
        let (size, source) = match call.original.take() {
            None => (ImageSize::select(&model, call.size, call.resize, None)?, None),
            Some(original) => self.read(&model, original, (call.size, call.resize), steps).await?,
        };
        let seeds = seeds(call.seed.unwrap_or_else(|| self.draw_seed()), call.count);
        let request = ImageRequest {
            prompt: call.prompt,
            negative_prompt: call.negative_prompt,
            size: size.generated,
            steps,
            guidance: call.guidance.unwrap_or_else(|| model.default_guidance()),
            scheduler: call.scheduler,
            seeds: seeds.clone(),
            init_image: source,
            lora: call.lora,
            previews: call.previews,
            tenant: access.project().to_u128(),
        };
        let engine = self.engine.clone();
        let generate = move || {
            engine.generate_images(&model, request).map_err(|refused| errors::from_refused(model.id(), refused))
        };
        let events = run_blocking(generate).await?;
        drop(slot);
        let seeds = seeds.into_iter().map(Some).collect();
        Ok(Submitted { size: size.output, seeds, steps, events })
    }

    /// Generates images with an upstream model. Waits for all of them.
    async fn submit_upstream(
        &self,
        model: &Arc<UpstreamModel>,
        call: ImageCall,
        recorder: &UsageRecorder,
    ) -> Result<Submitted> {
        if call.original.is_some() {
            return Err(unsupported(&model.id, "image"));
        }
        if let Some(size) = call.size {
            check_upstream_size(size)?;
        }
        // An image that is to be scaled is generated at the model's default size.
        let size = call.size.filter(|_| !call.resize).map(size_text);
        let has_seeds = model.api == Api::Outpost;
        let request = UpstreamImageRequest {
            prompt: &call.prompt,
            count: call.count,
            size,
            quality: Some(call.quality).filter(|quality| *quality != Quality::Auto).map(Quality::as_str),
            negative_prompt: call.negative_prompt.as_deref(),
            seed: if has_seeds { call.seed.or_else(|| Some(self.draw_seed())) } else { call.seed },
            steps: call.steps,
            guidance: call.guidance,
            scheduler: call.scheduler,
            lora: &call.lora,
            previews: call.previews,
        };
        let seeds = match request.seed {
            Some(seed) => seeds(seed, call.count).into_iter().map(Some).collect(),
            None => vec![None; call.count as usize],
        };
        let count = call.count as usize;
        let sent = json_call(model, "images/generations", request.fields(model)?, response_limits::images(count));
        let (files, _) = self.upstream.whole(sent, move |body| remote::read(body, count)).await?;
        // The target has done its work, so a client that leaves from now on is charged for it.
        recorder.set_images(u64::from(call.count));
        let images = self.decode(&model.id, files).await.inspect_err(|_| recorder.set_images(0))?;
        let returned = images.first().map(|image| [image.width, image.height]);
        // Without `resize`, the size is the target's, which may ignore the requested one.
        let size = call.size.filter(|_| call.resize).or(returned).unwrap_or_default();
        let done = images.into_iter().enumerate().map(|(index, image)| ImageEvent::Done { index, image });
        // The target does not report its steps.
        Ok(Submitted { size, seeds, steps: 0, events: ImageEvents::finished(done.collect()) })
    }

    /// Decodes the images of an upstream model.
    async fn decode(&self, id: &str, files: Vec<Vec<u8>>) -> Result<Vec<Image>> {
        let permit = self.decoding.clone().acquire_owned().await.map_err(Error::internal)?;
        let decoded = run_blocking(move || {
            let _permit = permit;
            files.iter().map(|file| codec::decode_generated(file)).collect::<Result<Vec<Image>>>()
        });
        decoded.await.map_err(|error| {
            tracing::warn!(model = id, %error, "a target's response is not an acceptable image");
            let text = format!(
                "The response of the model '{id}' is not an image of at most {MAX_IMAGE_SIDE} pixels per side. Try again."
            );
            Error::new(Code::ModelUnavailable, text).param("model")
        })
    }

    /// Decodes the source image and determines the output size.
    async fn read(
        &self,
        model: &Arc<ImageModel>,
        original: SourceImage,
        (requested, resize): (Option<[usize; 2]>, bool),
        steps: usize,
    ) -> Result<(ImageSize, Option<InitImage>)> {
        let permit = self.decoding.clone().acquire_owned().await.map_err(Error::internal)?;
        let model = Arc::clone(model);
        run_blocking(move || {
            let _permit = permit;
            let source = original.read()?;
            let size = ImageSize::select(&model, requested, resize, Some(source.size()))?;
            Ok((size, Some(source.resized(size.generated, steps)?)))
        })
        .await
    }

    fn draw_seed(&self) -> u64 {
        let mut bytes = [0; 8];
        self.clock_rng.fill(&mut bytes);
        u64::from_le_bytes(bytes) % RANDOM_SEEDS_BELOW
    }
}

fn check_scheduler(model: &ImageModel, requested: Option<SchedulerName>) -> Result<()> {
    let supported = model.schedulers();
    match requested.filter(|requested| !supported.is_empty() && !supported.contains(requested)) {
        None => Ok(()),
        Some(requested) => {
            let names: Vec<String> = supported.iter().map(SchedulerName::to_string).collect();
            let text = format!(
                "'scheduler' is '{requested}', which the model '{}' does not support. Supported: {}.",
                model.id(),
                names.join(", ")
            );
            Err(Error::invalid("scheduler", text))
        }
    }
}

/// `count` consecutive seeds from `first`, wrapping to zero.
fn seeds(first: u64, count: u32) -> Vec<u64> {
    (0..u64::from(count)).map(|index| first.wrapping_add(index) % SEEDS_BELOW).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn seeds_are_consecutive_and_wrap_to_zero() {
        assert_eq!(super::seeds(7, 3), [7, 8, 9]);
        assert_eq!(super::seeds((1 << 63) - 1, 3), [(1 << 63) - 1, 0, 1]);
        assert_eq!(super::seeds(u64::MAX, 2), [(1 << 63) - 1, 0]);
    }
}
