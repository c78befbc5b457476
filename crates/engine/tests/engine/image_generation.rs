//! Compares images of small random pipelines with diffusers, with the same weights, prompts and seeds.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{Device, Tensor};
use outpost_engine::{
    Engine, Failure, Image, ImageEvent, ImageModel, ImageRequest, InitImage, LoadError, ModelKind, Precision, Refused,
    Settings,
};
use outpost_testing::fixtures::{copy_folder, fixture};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::TestClock;
use crate::wait::until;

pub fn fixtures() -> PathBuf {
    fixture("pipelines")
}

/// A pipeline in a models folder, and its reference results.
pub struct Rig {
    pub engine: Engine,
    pub model: Arc<ImageModel>,
    pub facts: Value,
    tensors: HashMap<String, Tensor>,
    pub dir: TempDir,
}

/// An engine over a models folder.
pub fn engine(models: &Path, precision: Precision) -> Engine {
    let mut settings = Settings::new(models, 1 << 30);
    settings.precisions.usual = precision;
    Engine::start(settings, Arc::new(TestClock::default())).unwrap()
}

impl Rig {
    fn new(name: &str, precision: Precision) -> Self {
        Self::with(name, |settings| settings.precisions.usual = precision)
    }

    fn with(name: &str, change: impl FnOnce(&mut Settings)) -> Self {
        Self::open(name, change, |_| {})
    }

    /// In full precision, with changes to the folder first.
    pub fn with_files(name: &str, change: impl FnOnce(&Path)) -> Self {
        Self::open(name, |settings| settings.precisions.usual = Precision::Full, change)
    }

    fn open(name: &str, set: impl FnOnce(&mut Settings), change: impl FnOnce(&Path)) -> Self {
        let read = |file: String| -> Value {
            let text = fs::read_to_string(fixtures().join(file)).unwrap();
            serde_json::from_str(&text.replace("-Infinity", "null")).unwrap()
        };
        let facts = read(format!("{name}.reference.json"));
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("diffusion");
        if let Some(parts) = facts["parts"].as_str() {
            copy_folder(&fixtures().join(parts), &folder);
        }
        copy_folder(&fixtures().join(facts["folder"].as_str().unwrap_or(name)), &folder);
        change(&folder);
        let mut settings = Settings::new(dir.path(), 1 << 30);
        set(&mut settings);
        let engine = Engine::start(settings, Arc::new(TestClock::default())).unwrap();
        let model = engine.models().load_model::<ImageModel>("diffusion").unwrap();
        let tensors = fixtures().join(format!("{name}.reference.safetensors"));
        let tensors = candle_core::safetensors::load(tensors, &Device::Cpu).unwrap();
        Self { engine, model, facts, tensors, dir }
    }

    pub fn image(&self, name: &str) -> Image {
        let tensor = &self.tensors[name];
        let (height, width, _) = tensor.dims3().unwrap();
        Image { width, height, rgb: tensor.flatten_all().unwrap().to_vec1().unwrap() }
    }

    /// The request of a case.
    pub fn request(&self, case: &Value) -> ImageRequest {
        let number = |key: &str| case[key].as_u64().map(|number| number as usize);
        let source = case["image"].as_str().map(|image| {
            let mask =
                case["mask_image"].as_str().map(|mask| self.tensors[mask].flatten_all().unwrap().to_vec1().unwrap());
            let strength = case["strength"].as_f64().unwrap() as f32;
            InitImage { image: self.image(image), strength, mask }
        });
        let size = match (&source, number("width"), number("height")) {
            (_, Some(width), Some(height)) => [width, height],
            (Some(source), ..) => [source.image.width, source.image.height],
            _ => self.model.default_size(),
        };
        ImageRequest {
            prompt: case["prompt"].as_str().unwrap().to_owned(),
            negative_prompt: case["negative_prompt"].as_str().map(str::to_owned),
            size,
            steps: number("steps").unwrap(),
            guidance: case["guidance_scale"].as_f64().map_or(self.model.default_guidance(), |scale| scale as f32),
            scheduler: Some(case["scheduler"].as_str().unwrap().parse().unwrap()),
            seeds: case["seeds"].as_array().unwrap().iter().map(|seed| seed.as_u64().unwrap()).collect(),
            init_image: source,
            lora: loras(case),
            previews: 0,
            tenant: 1,
        }
    }

    pub fn generate(&self, request: ImageRequest) -> Vec<Image> {
        let mut events = self.engine.generate_images(&self.model, request).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut images = Vec::new();
            while let Some(event) = events.next().await {
                if let ImageEvent::Done { index, image } = event.unwrap() {
                    assert_eq!(index, images.len());
                    images.push(image);
                }
            }
            images
        })
    }

    /// Why a request is refused.
    pub fn refusal(&self, request: ImageRequest) -> String {
        self.engine.generate_images(&self.model, request).unwrap_err().to_string()
    }

    /// Compares a case's images with the reference, with limits for the mean and the largest difference.
    pub fn check(&self, name: &str, case: &Value, mean_bound: f64, bound: u8) {
        let images = self.generate(self.request(case));
        let expected: Vec<Image> =
            case["images"].as_array().unwrap().iter().map(|image| self.image(image.as_str().unwrap())).collect();
        assert_eq!(images.len(), expected.len());
        // With several images and a mask, diffusers draws noise differently for all but the first, which cannot be
        // reproduced alone.
        let compared = if case.get("mask_image").is_some() { 1 } else { expected.len() };
        for (found, expected) in images.iter().zip(&expected).take(compared) {
            let (mean, maximum) = difference(found, expected);
            println!("{name} {} mean {mean:.4} most {maximum}", case["name"]);
            assert!(mean <= mean_bound && maximum <= bound, "{name} {}: mean {mean}, most {maximum}", case["name"]);
        }
    }
}

/// The adapters of a case.
fn loras(case: &Value) -> Vec<(String, f32)> {
    let one = |lora: &Value| {
        let file = lora["file"].as_str().unwrap();
        (file.trim_end_matches(".safetensors").to_owned(), lora["weight"].as_f64().unwrap() as f32)
    };
    case["loras"].as_array().map_or_else(Vec::new, |all| all.iter().map(one).collect())
}

/// The mean and the largest difference of bytes.
fn difference(found: &Image, expected: &Image) -> (f64, u8) {
    assert_eq!((found.width, found.height), (expected.width, expected.height));
    let differences = found.rgb.iter().zip(&expected.rgb).map(|(x, y)| x.abs_diff(*y));
    let sum: u64 = differences.clone().map(u64::from).sum();
    (sum as f64 / found.rgb.len() as f64, differences.max().unwrap())
}

fn check(name: &str) {
    check_at(name, Precision::Full, 1., 8);
}

/// With these limits for the mean and the largest difference.
fn check_at(name: &str, precision: Precision, mean_bound: f64, bound: u8) {
    let rig = Rig::new(name, precision);
    let size: Vec<usize> = serde_json::from_value(rig.facts["default_size"].clone()).unwrap();
    assert_eq!(rig.model.default_size().to_vec(), size, "{name}");
    let cases = rig.facts["cases"].as_array().unwrap();
    assert!(cases.len() > 1);
    for case in cases {
        // Some cases depend on settings that requests do not have.
        if case.get("without").is_some()
            || case.get("transformer").is_some()
            || name == "sd2v" && case["name"] == "zero-snr"
        {
            continue;
        }
        rig.check(name, case, mean_bound, bound);
    }
}

#[test]
fn stable_diffusion_1_matches_diffusers() {
    check("sd1");
}

#[test]
fn an_inpainting_network_matches_diffusers() {
    check("sd1-inpaint");
}

#[test]
fn stable_diffusion_2_matches_diffusers() {
    check("sd2v");
}

#[test]
fn a_consistency_model_matches_diffusers() {
    check("lcm");
}

#[test]
fn stable_diffusion_xl_matches_diffusers() {
    check("sdxl");
}

#[test]
fn a_distilled_model_matches_diffusers() {
    check("turbo");
}

#[test]
fn bf16_images_differ_little() {
    // Rounding errors grow in random networks; a wrong operation would far exceed this.
    for name in ["sd1", "sdxl"] {
        check_at(name, Precision::Bf16, 5., 50);
    }
}

/// A request that the tiny model serves quickly.
fn small(seeds: &[u64]) -> ImageRequest {
    ImageRequest {
        prompt: "a red house".to_owned(),
        negative_prompt: None,
        size: [16, 16],
        steps: 2,
        guidance: 7.5,
        scheduler: None,
        seeds: seeds.to_vec(),
        init_image: None,
        lora: Vec::new(),
        previews: 0,
        tenant: 1,
    }
}

/// A metric of the engine.
fn counter(engine: &Engine, name: &str) -> Option<String> {
    let metrics = engine.metrics();
    let line = metrics.lines().find(|line| line.starts_with(name))?;
    line.split(' ').next_back().map(str::to_owned)
}

#[test]
fn cancelled_images_are_not_generated() {
    // Memory for one image at a time: a leaked image would leave none for the last.
    let rig = Rig::with("sd1", |settings| settings.memory_bytes = 64 << 20);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for round in 0..500 {
        let endless = ImageRequest { steps: 900, scheduler: Some("ddim".parse().unwrap()), ..small(&[1, 2, 3]) };
        let mut events = rig.engine.generate_images(&rig.model, endless.clone()).unwrap();
        let waiting = rig.engine.generate_images(&rig.model, ImageRequest { tenant: 2, ..endless }).unwrap();
        if round % 2 == 0 {
            let first = runtime.block_on(events.next()).unwrap().unwrap();
            assert!(matches!(first, ImageEvent::Step { index: 0, step: 1, .. }));
        }
        drop((events, waiting));
    }
    assert_eq!(rig.generate(small(&[4])).len(), 1);
    assert_eq!(
        counter(&rig.engine, "outpost_images_total").as_deref(),
        Some("1"),
        "none of the cancelled images was finished"
    );
    assert_eq!(counter(&rig.engine, "outpost_images_queued").as_deref(), Some("0"));
}

#[test]
fn images_that_are_not_received_are_dropped() {
    let clock = Arc::new(TestClock::default());
    let dir = tempfile::tempdir().unwrap();
    copy_folder(&fixtures().join("sd1"), &dir.path().join("diffusion"));
    let engine = Engine::start(Settings::new(dir.path(), 1 << 30), clock.clone()).unwrap();
    let model = engine.models().load_model::<ImageModel>("diffusion").unwrap();
    let mut events = engine.generate_images(&model, small(&[1, 2, 3, 4, 5])).unwrap();
    let finished = || counter(&engine, "outpost_images_total").map_or(0, |count| count.parse().unwrap());
    until(|| "two are finished", || finished() == 2);
    // The third waits until the first is received; other requests do not wait for it.
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut other = engine.generate_images(&model, ImageRequest { tenant: 2, ..small(&[6]) }).unwrap();
    while runtime.block_on(other.next()).is_some() {}
    assert_eq!((finished(), counter(&engine, "outpost_images_queued").as_deref()), (3, Some("3")));
    clock.advance(std::time::Duration::from_secs(61));
    until(|| "the queue is empty", || counter(&engine, "outpost_images_queued").as_deref() == Some("0"));
    assert_eq!(runtime.block_on(events.next()), Some(Err(Failure::ClientStalled)));
    assert_eq!((runtime.block_on(events.next()), events.close(), finished()), (None, 2, 3));
}

#[test]
fn progress_and_previews_are_reported() {
    let rig = Rig::new("sd1", Precision::Full);
    let request = ImageRequest { steps: 8, previews: 3, scheduler: Some("ddim".parse().unwrap()), ..small(&[1, 2]) };
    let mut events = rig.engine.generate_images(&rig.model, request).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (mut steps, mut previews, mut done) = (Vec::new(), Vec::new(), 0);
    while let Some(event) = runtime.block_on(events.next()) {
        match event.unwrap() {
            ImageEvent::Step { index: image, step, steps: of, preview } => {
                assert_eq!((image, of), (done, 8));
                steps.push(step);
                previews.extend(preview.map(|preview| (step, preview.width, preview.height)));
            }
            ImageEvent::Done { .. } => done += 1,
        }
    }
    assert_eq!(done, 2);
    assert_eq!(steps, [(1..=8).collect::<Vec<_>>(), (1..=8).collect()].concat());
    let one = [(2, 16, 16), (4, 16, 16), (6, 16, 16)];
    assert_eq!(previews, [one, one].concat());
}

#[test]
fn impossible_requests_are_refused_at_once() {
    let rig = Rig::new("sd1", Precision::Full);
    let source = |strength, side| InitImage {
        image: Image { width: side, height: side, rgb: vec![0; 3 * side * side] },
        strength,
        mask: None,
    };
    let cases = [
        (ImageRequest { size: [20, 16], ..small(&[1]) }, "multiples of 8"),
        (ImageRequest { size: [16, 4096], ..small(&[1]) }, "from 16 to 128"),
        (ImageRequest { steps: 0, ..small(&[1]) }, "0 steps"),
        (ImageRequest { steps: 1001, ..small(&[1]) }, "1001 steps"),
        (small(&[]), "0 images"),
        (small(&[1; 11]), "11 images"),
        (ImageRequest { scheduler: Some("flow_euler".parse().unwrap()), ..small(&[1]) }, "flow-matching"),
        (ImageRequest { init_image: Some(source(0.5, 8)), ..small(&[1]) }, "not have the requested size"),
        (ImageRequest { init_image: Some(source(0., 16)), ..small(&[1]) }, "strength"),
        (ImageRequest { init_image: Some(source(0.1, 16)), ..small(&[1]) }, "runs none of 2 steps"),
    ];
    for (request, expected) in cases {
        let refused = rig.engine.generate_images(&rig.model, request).unwrap_err();
        assert!(matches!(&refused, Refused::Invalid(why) if why.contains(expected)), "{refused:?} for {expected}");
    }
}

#[test]
fn an_image_that_exceeds_memory_is_refused_with_its_size() {
    let trained_at_1024 = |dir: &Path| {
        let path = dir.join("unet/config.json");
        let config = fs::read_to_string(&path).unwrap().replace("\"sample_size\": 16", "\"sample_size\": 256");
        fs::write(path, config).unwrap();
    };
    let rig = Rig::open("sd1", |settings| settings.memory_bytes = 64 << 20, trained_at_1024);
    rig.model.check_size([64, 64]).unwrap();
    let why = rig.model.check_size([2048, 2048]).unwrap_err();
    assert!(why.contains("2048x2048") && why.contains("of memory"), "{why}");
}

/// A change to a folder.
type Damage = fn(&Path);

#[test]
fn invalid_pipeline_folders_report_why() {
    let cases: [(&str, Damage, &str); 8] = [
        ("no part", |dir| fs::remove_dir_all(dir.join("vae")).unwrap(), "no folder vae"),
        ("no config", |dir| fs::remove_file(dir.join("unet/config.json")).unwrap(), "config.json"),
        ("no weights", |dir| fs::remove_file(weights(dir)).unwrap(), ".safetensors"),
        ("cut short", |dir| fs::write(weights(dir), &fs::read(weights(dir)).unwrap()[..5000]).unwrap(), "header"),
        ("no scheduler", |dir| fs::remove_dir_all(dir.join("scheduler")).unwrap(), "scheduler_config.json"),
        ("no tokenizer", |dir| fs::remove_file(dir.join("tokenizer/merges.txt")).unwrap(), "merges.txt"),
        (
            "other class",
            |dir| swap(&dir.join("model_index.json"), "StableDiffusionPipeline", "OtherPipeline"),
            "OtherPipeline",
        ),
        (
            "other block",
            |dir| swap(&dir.join("unet/config.json"), "CrossAttnUpBlock2D", "AttnUpBlock2D"),
            "AttnUpBlock2D",
        ),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (name, damage, _) in cases {
        let folder = dir.path().join(name);
        copy_folder(&fixtures().join("sd1"), &folder);
        damage(&folder);
    }
    let engine = Engine::start(Settings::new(dir.path(), 1 << 30), Arc::new(TestClock::default())).unwrap();
    for (name, _, expected) in cases {
        let found = engine.models().find(name).unwrap();
        let problem = found.problem.unwrap_or_default();
        assert!(problem.contains(expected), "{name}: {problem:?}");
        assert_eq!(found.kind, ModelKind::Image);
        assert!(matches!(engine.models().load_model::<ImageModel>(name), Err(LoadError::Unusable { .. })), "{name}");
    }
}

fn weights(folder: &Path) -> PathBuf {
    folder.join("unet/diffusion_pytorch_model.safetensors")
}

fn swap(path: &Path, src: &str, dst: &str) {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(src));
    fs::write(path, text.replace(src, dst)).unwrap();
}
