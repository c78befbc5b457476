//! Compares images with LoRA adapters to diffusers with the adapters merged into the weights.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use candle_core::{Device, Tensor};
use outpost_engine::{Image, ImageRequest};

use crate::harness::memory;
use crate::image_generation::{Rig, fixtures};

const PEFT: &str = "sd1.lora-peft";
const KOHYA: &str = "sd1.lora-kohya";

type Tensors = HashMap<String, Tensor>;

fn file(name: &str) -> std::path::PathBuf {
    fixtures().join(format!("{name}.safetensors"))
}

fn tensors(name: &str) -> Tensors {
    candle_core::safetensors::load(file(name), &Device::Cpu).unwrap()
}

/// Copies a file into an adapter folder.
fn write_adapter(folder: &Path, name: &str, tensors: &Tensors) {
    fs::create_dir_all(folder).unwrap();
    candle_core::safetensors::save(tensors, folder.join(format!("{name}.safetensors"))).unwrap();
}

/// One of the files is in the shared folder, the other in the model's own.
fn rig() -> Rig {
    Rig::with_files("sd1-lora", |pipeline| {
        write_adapter(&pipeline.with_file_name("loras"), PEFT, &tensors(PEFT));
        write_adapter(&pipeline.join("loras"), KOHYA, &tensors(KOHYA));
    })
}

/// A small request with these adapters.
fn with(rig: &Rig, names: &[&str]) -> ImageRequest {
    let lora = names.iter().map(|name| ((*name).to_owned(), 1.)).collect();
    ImageRequest { lora, steps: 2, size: [16, 16], ..rig.request(&rig.facts["cases"][0]) }
}

fn generate(rig: &Rig, names: &[&str]) -> Image {
    rig.generate(with(rig, names)).remove(0)
}

#[test]
fn adapters_match_merged_weights() {
    let rig = rig();
    let cases = rig.facts["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 6);
    // One loaded model serves all, and the first again: adapters leave no trace.
    for case in cases.iter().chain(cases.first()) {
        rig.check("sd1-lora", case, 1., 8);
    }
}

#[test]
fn the_adapter_folder_is_not_a_model() {
    let rig = rig();
    let ids: Vec<String> = rig.engine.models().list().into_iter().map(|model| model.id).collect();
    assert_eq!(ids, ["diffusion"]);
}

#[test]
fn adapters_take_memory_only_while_in_use() {
    let rig = rig();
    let before = memory(&rig.engine, "weights");
    generate(&rig, &[]);
    assert_eq!(memory(&rig.engine, "weights"), before);
    generate(&rig, &[PEFT]);
    let one = memory(&rig.engine, "weights");
    assert!(one > before, "{one} after {before}");
    generate(&rig, &[PEFT, PEFT]);
    assert_eq!(memory(&rig.engine, "weights"), one, "a file is in memory once");
    generate(&rig, &[KOHYA]);
    assert!(memory(&rig.engine, "weights") > one);
    let Rig { engine, model, .. } = rig;
    drop(model);
    engine.models().unload("diffusion").unwrap();
    assert_eq!(memory(&engine, "weights"), 0);
}

#[test]
fn a_changed_file_is_read_again() {
    let rig = rig();
    let (peft, kohya) = (generate(&rig, &[PEFT]), generate(&rig, &[KOHYA]));
    assert_ne!(peft, kohya);
    write_adapter(&rig.dir.path().join("loras"), PEFT, &tensors(KOHYA));
    assert_eq!(generate(&rig, &[PEFT]), kohya);
}

#[test]
fn both_layer_naming_schemes_are_supported() {
    let rig = rig();
    let (new, old) = ("lora_unet_down_blocks_0_attentions_0_", "lora_unet_input_blocks_1_1_");
    let some: Tensors = tensors(KOHYA).into_iter().filter(|(name, _)| name.starts_with(new)).collect();
    assert!(some.len() > 20);
    let renamed = some.iter().map(|(name, tensor)| (name.replace(new, old), tensor.clone())).collect();
    let folder = rig.dir.path().join("loras");
    write_adapter(&folder, "new", &some);
    write_adapter(&folder, "old", &renamed);
    let image = generate(&rig, &["new"]);
    assert_ne!(image, generate(&rig, &[]));
    assert_eq!(image, generate(&rig, &["old"]));
}

#[test]
fn the_error_for_an_unknown_adapter_lists_the_known_ones() {
    let rig = rig();
    let refusal = rig.refusal(with(&rig, &["style"]));
    assert!(refusal.contains(&format!("no adapter style; available: {KOHYA}, {PEFT}")), "{refusal}");
    for name in ["../loras/sd1.lora-peft", "", ".hidden", "a\\b"] {
        assert!(rig.refusal(with(&rig, &[name])).contains("there is no adapter"), "{name}");
    }
    let many = rig.refusal(with(&rig, &[PEFT; 9]));
    assert!(many.contains("9 adapters; at most 8"), "{many}");
    let mut odd = with(&rig, &[PEFT]);
    odd.lora[0].1 = f32::NAN;
    assert!(rig.refusal(odd).contains("is not finite"));
    let none = Rig::with_files("sdxl", |_| {});
    let refusal = none.refusal(ImageRequest { lora: vec![("style".to_owned(), 1.)], ..with(&none, &[]) });
    assert!(refusal.contains("files in loras/ of the models folder"), "{refusal}");
}

/// Why the kohya file is refused after this change.
fn refused(change: impl FnOnce(&mut Tensors)) -> String {
    let rig = rig();
    let mut changed = tensors(KOHYA);
    change(&mut changed);
    write_adapter(&rig.dir.path().join("loras"), "odd", &changed);
    rig.refusal(with(&rig, &["odd"]))
}

#[test]
fn an_adapter_that_does_not_fit_is_refused_with_the_tensor_name() {
    let layer = "lora_unet_conv_in";
    let key = |end: &str| format!("{layer}{end}");
    let tensor = |shape: &[usize]| Tensor::zeros(shape, candle_core::DType::F32, &Device::Cpu).unwrap();
    let put = |ends: &[(&str, &[usize])], expected: &str| {
        let refusal = refused(|all| all.extend(ends.iter().map(|(end, shape)| (key(end), tensor(shape)))));
        assert!(refusal.contains("the adapter odd cannot be used") && refusal.contains(expected), "{refusal}");
    };
    put(&[(".lora_down.weight", &[2, 4, 3, 3])], "lora_unet_conv_in.lora_down.weight has no counterpart");
    put(&[(".alpha", &[])], "lora_unet_conv_in.alpha has no matrices");
    put(&[(".lora_down.weight", &[2, 4, 1, 1]), (".lora_up.weight", &[8, 2, 1, 1])], "[2, 4, 1, 1]");
    put(&[(".lora_down.weight", &[2, 4, 3, 3]), (".lora_up.weight", &[8, 3, 1, 1])], "[8, 3, 1, 1]");
    put(&[(".lora_down.weight", &[2, 4, 3, 3]), (".lora_up.weight", &[8, 2, 1, 1]), (".alpha", &[2])], "one element");
    put(&[(".hada_w1_a", &[2, 2])], "a LoHa");
    put(&[(".lokr_w1", &[2, 2])], "a LoKr");
    put(&[(".lora_mid.weight", &[2, 2, 3, 3])], "LoCon");
    put(&[(".weight", &[2, 2])], "not part of a LoRA");
    let unknown = refused(|all| {
        all.insert("lora_unet_other.lora_down.weight".to_owned(), tensor(&[2, 4]));
        all.insert("lora_unet_other.lora_up.weight".to_owned(), tensor(&[4, 2]));
    });
    assert!(
        unknown.contains("lora_unet_other.lora_down.weight is for a layer that this model does not have"),
        "{unknown}"
    );
}

#[test]
fn files_that_are_not_adapters_are_refused() {
    let rig = rig();
    let folder = rig.dir.path().join("loras");
    fs::write(folder.join("junk.safetensors"), b"nothing of that kind").unwrap();
    assert!(rig.refusal(with(&rig, &["junk"])).contains("junk.safetensors"));
    fs::File::create(folder.join("long.safetensors")).unwrap().set_len(3 << 30).unwrap();
    let long = rig.refusal(with(&rig, &["long"]));
    assert!(long.contains("; at most"), "{long}");
    let other =
        Rig::with_files("sdxl", |pipeline| write_adapter(&pipeline.with_file_name("loras"), PEFT, &tensors(PEFT)));
    let refusal = other.refusal(ImageRequest { lora: vec![(PEFT.to_owned(), 1.)], ..with(&other, &[]) });
    assert!(refusal.contains("its tensor"), "{refusal}");
}
