//! The engine and the models below it, through their public API.
#![cfg(test)]

use outpost_testing::{decoder_cases, rng, tiny_kokoro, tiny_model, tiny_whisper, wait};

mod benchmarks;
mod cancellation;
mod chat_adapters;
mod chat_templates;
mod classifier_families;
mod config_numbers;
mod damaged_gguf;
mod decoder;
mod decoder_families;
mod draft_models;
mod encoder_adapters;
mod encoder_backends;
mod encoder_families;
mod external_components;
mod fp8_weights;
mod generation;
mod harmony;
mod harness;
mod huggingface_folders;
mod image_generation;
mod invalid_weights;
mod lora_adapters;
mod lora_training;
mod model_files;
mod model_settings;
mod mtp;
mod ngram_speculation;
mod overload_and_fairness;
mod prefix_cache;
mod prefix_cache_disk;
mod prompt_logprobs;
mod reasoning;
mod recurrent_models;
mod registry;
mod scheduling;
mod sd3_and_flux;
mod split_gguf;
mod structured_output;
mod text_prompts;
mod tiny_adapter;
mod token_options;
mod tokenizer_faults;
mod training_runs;
