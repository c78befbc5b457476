//! Compares the starter image model with diffusers. `tests/fixtures/make_pictogram_reference.py` wrote the images.

use std::sync::Arc;

use candle_core::{Device, safetensors};
use outpost::app::SystemClockRng;
use outpost::engine::{Engine, Image, ImageEvent, ImageModel, ImageRequest, Settings};

use super::starter;

fn engine() -> Engine {
    let mut settings = Settings::new(starter::models(), 1 << 30);
    settings.threads = 2;
    Engine::start(settings, Arc::new(SystemClockRng::new())).unwrap()
}

/// Generates an image with the model's default settings.
fn generate(engine: &Engine, prompt: &str, seed: u64, scheduler: Option<&str>) -> Image {
    let model = engine.models().load_model::<ImageModel>("pictogram").unwrap();
    let request = ImageRequest {
        prompt: prompt.to_owned(),
        negative_prompt: None,
        size: model.default_size(),
        steps: model.default_steps(),
        guidance: model.default_guidance(),
        scheduler: scheduler.map(|name| name.parse().unwrap()),
        seeds: vec![seed],
        init_image: None,
        lora: Vec::new(),
        previews: 0,
        tenant: 1,
    };
    let mut events = engine.generate_images(&model, request).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        loop {
            if let ImageEvent::Done { image, .. } = events.next().await.unwrap().unwrap() {
                return image;
            }
        }
    })
}

#[test]
fn pictogram_images_match_diffusers() {
    let engine = engine();
    let expected = safetensors::load("tests/fixtures/pictogram.safetensors", &Device::Cpu).unwrap();
    assert_eq!(expected.len(), 4);
    for (case, expected) in expected {
        let (seed, rest) = case.split_once(' ').unwrap();
        let (scheduler, prompt) = rest.split_once(' ').unwrap();
        let found = generate(&engine, prompt, seed.parse().unwrap(), Some(scheduler)).rgb;
        let expected: Vec<u8> = expected.flatten_all().unwrap().to_vec1().unwrap();
        assert_eq!(found.len(), expected.len());
        let differences = found.iter().zip(&expected).map(|(x, y)| x.abs_diff(*y));
        let mean = differences.clone().map(f64::from).sum::<f64>() / found.len() as f64;
        let max_difference = differences.max().unwrap();
        println!("{case}: mean {mean:.4}, maximum {max_difference}");
        assert!(mean <= 1. && max_difference <= 8, "{case}: mean {mean}, maximum {max_difference}");
    }
}

/// Checks that the prompt affects the image. It does not check quality.
#[test]
fn images_have_the_requested_colours() {
    let engine = engine();
    let mean = |prompt: &str| {
        let Image { rgb, .. } = generate(&engine, prompt, 7, None);
        let coloured = rgb.as_chunks::<3>().0.iter().filter(|pixel| pixel.iter().any(|channel| *channel < 200));
        let (mut sum, mut count) = ([0.; 3], 0.);
        for pixel in coloured {
            count += 1.;
            for (sum, channel) in sum.iter_mut().zip(pixel) {
                *sum += f64::from(*channel);
            }
        }
        // The image has a drawing on a white background.
        let share = count / (rgb.len() / 3) as f64;
        assert!((0.1..0.9).contains(&share), "{prompt}: {share}");
        sum.map(|sum| sum / count)
    };
    let [red, green, blue] = mean("a red apple");
    assert!(red > 1.5 * green && red > 1.5 * blue, "{red} {green} {blue}");
    let [red, green, _] = mean("a green apple");
    assert!(green > 1.2 * red, "{red} {green}");
    let [red, _, blue] = mean("a blue heart");
    assert!(blue > 1.3 * red, "{red} {blue}");
}
