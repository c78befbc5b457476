//! What the code does not know about families: the names and sizes of their models, what chat templates of these models show, and which
//! models of the same name are not supported. Sizes are those of model cards.

/// A row of the table of families in docs/models.md.
pub struct FamilyRow {
    /// The entries of `FAMILIES` that it describes, each by its first model type, or by its architecture if it has none.
    pub entries: &'static [&'static str],
    pub models: &'static str,
    /// The formats of tool calls, each with the models that have it. No models: all that have tools in their templates.
    pub calls: &'static [(&'static str, &'static str)],
    /// The opening markers of reasoning, each with the models that have it. No models: all that reason.
    pub reasoning: &'static [(&'static str, &'static str)],
    pub not_supported: &'static str,
}

/// The formats of tool calls, as docs/structured-output.md names them.
const HERMES: &str = "Hermes";
const QWEN3_CODER: &str = "Qwen3-Coder";
const MISTRAL_2024: &str = "Mistral up to 2024";
const MISTRAL_2025: &str = "Mistral from 2025 on";
const LLAMA_3: &str = "Llama 3";

const THINK: &str = "<think>";

/// Reasoning that is a channel of its own.
pub const CHANNELS: &str = "channels";

pub const ROWS: &[FamilyRow] = &[
    FamilyRow {
        entries: &["llama"],
        models: "Llama 2, 3, 3.1, 3.2 and 3.3: 1B to 405B; TinyLlama: 1.1B; SmolLM and SmolLM2: 135M, 360M, 1.7B",
        calls: &[(LLAMA_3, "Llama 3.1 to 3.3"), ("Nemotron 2", "Nemotron models made from Llama")],
        reasoning: &[(THINK, "DeepSeek R1 Distill")],
        not_supported: "Llama 4 (`llama4`), Llama 3.2 Vision (`mllama`)",
    },
    FamilyRow {
        entries: &["mistral", "mixtral", "ministral3"],
        models: "Mistral: 7B; Mistral Nemo: 12B; Mistral and Magistral Small: 22B, 24B; Mistral Large 2: 123B; Mixtral: 8x7B, 8x22B; \
                 Ministral 3: 3B, 8B, 14B; Devstral Small 2: 24B",
        calls: &[(MISTRAL_2024, ""), (MISTRAL_2025, "")],
        reasoning: &[("[THINK]", "Magistral, Ministral 3 Reasoning")],
        not_supported: "",
    },
    FamilyRow {
        entries: &["qwen2"],
        models: "Qwen 2, 2.5 and 2.5 Coder: 0.5B to 72B; QwQ: 32B",
        calls: &[(HERMES, "Qwen 2.5, QwQ")],
        reasoning: &[(THINK, "QwQ, DeepSeek R1 Distill")],
        not_supported: "Qwen2-57B-A14B (`qwen2_moe`), Qwen2-VL and Qwen2.5-VL",
    },
    FamilyRow {
        entries: &["qwen3", "qwen3_moe"],
        models: "Qwen 3: 0.6B to 32B dense, 30B-A3B, 235B-A22B; Qwen3-Coder: 30B-A3B, 480B-A35B",
        calls: &[(HERMES, "Qwen 3"), (QWEN3_CODER, "Coder")],
        reasoning: &[(THINK, "Qwen 3")],
        not_supported: "Qwen3-VL, Qwen3-Omni",
    },
    FamilyRow {
        entries: &["qwen3_next"],
        models: "Qwen3-Next, Qwen3-Coder-Next: 80B-A3B",
        calls: &[(HERMES, "Qwen3-Next"), (QWEN3_CODER, "Coder")],
        reasoning: &[(THINK, "Qwen3-Next Thinking")],
        not_supported: "adapters of `in_proj_qkvz`, `in_proj_ba` and shared experts",
    },
    FamilyRow {
        entries: &["qwen3_5_text", "qwen3_5_moe_text"],
        models: "Qwen 3.5, 3.6 and 3.8: 0.8B, 2B, 4B, 9B and 27B dense, 35B-A3B, 122B-A10B, 397B-A17B",
        calls: &[(QWEN3_CODER, "")],
        reasoning: &[(THINK, "")],
        not_supported: "adapters of the delta networks over GGUF files, if there are more value heads than key heads",
    },
    FamilyRow {
        entries: &["gemma", "gemma2", "gemma3_text"],
        models: "Gemma: 2B, 7B; Gemma 2: 2B, 9B, 27B; Gemma 3: 270M, 1B, 4B, 12B, 27B",
        calls: &[],
        reasoning: &[],
        not_supported: "Gemma 3n (`gemma3n`)",
    },
    FamilyRow {
        entries: &["gemma4_text"],
        models: "Gemma 4: E2B, E4B, 12B and 31B dense, 26B-A4B",
        calls: &[("Gemma 4", "")],
        reasoning: &[("<|channel>thought", "")],
        not_supported: "",
    },
    FamilyRow {
        entries: &["gemma-embedding"],
        models: "EmbeddingGemma: 300M. It only [encodes texts](embeddings.md#models); its folders have the type `gemma3_text`",
        calls: &[],
        reasoning: &[],
        not_supported: "chat, training",
    },
    FamilyRow {
        entries: &["gpt_oss"],
        models: "gpt-oss: 20B, 120B",
        calls: &[("gpt-oss", "")],
        reasoning: &[(CHANNELS, "")],
        not_supported: "",
    },
    FamilyRow {
        entries: &["phi3"],
        models: "Phi-3 and 3.5: 3.8B (mini), 14B (medium); Phi-4: 14B; Phi-4-mini: 3.8B",
        calls: &[],
        reasoning: &[(THINK, "Phi-4 reasoning")],
        not_supported: "Phi-3-small (`phi3small`), Phi-3.5-MoE (`phimoe`), Phi-4-multimodal (`phi4mm`)",
    },
    FamilyRow {
        entries: &["deepseek_v2", "deepseek_v3"],
        models: "DeepSeek V2 Lite: 16B; DeepSeek V3, R1 and V3.1: 671B; GLM-4.7-Flash: 30B-A3B",
        calls: &[("GLM-4.7", "GLM-4.7-Flash")],
        reasoning: &[(THINK, "R1, V3.1, GLM-4.7-Flash")],
        not_supported: "DeepSeek V3.2 (`deepseek_v32`), routing by groups of V2 as safetensors (`group_limited_greedy`), drafting with layers for \
                        multi-token prediction, which are not read, adapters of `q_b_proj`, `kv_a_proj_with_mqa` and `kv_b_proj`",
    },
    FamilyRow { entries: &["glm4"], models: "GLM-4 0414: 9B, 32B", calls: &[], reasoning: &[], not_supported: "" },
    FamilyRow {
        entries: &["glm4_moe"],
        models: "GLM-4.5, 4.6 and 4.7: 355B-A32B; GLM-4.5-Air: 106B-A12B",
        calls: &[("GLM-4.5", "4.5 and 4.6"), ("GLM-4.7", "4.7")],
        reasoning: &[(THINK, "")],
        not_supported: "GLM-4.5V (`glm4v_moe`), drafting with layers for multi-token prediction, which are not read",
    },
    FamilyRow {
        entries: &["nemotron_h", "nemotron_h_moe"],
        models: "Nemotron-H: 8B, 47B; Nemotron Nano 2: 9B, 12B; Nemotron 3 Nano: 4B, 30B-A3B",
        calls: &[("Nemotron 2", "Nano 2"), (QWEN3_CODER, "Nemotron 3")],
        reasoning: &[(THINK, "Nano 2, Nemotron 3")],
        not_supported: "Nemotron 3 Super and others with `moe_latent_size`, drafting with layers for multi-token prediction, which are not read",
    },
    FamilyRow {
        entries: &["granite", "granitemoehybrid"],
        models: "Granite 3: 2B, 8B dense; Granite 4: 350M, 1B, 3B (Micro), 7B-A1B (Tiny), 32B-A9B (Small)",
        calls: &[("Granite 3", ""), (HERMES, "Granite 4")],
        reasoning: &[(THINK, "Granite 3.3")],
        not_supported: "mixtures of experts of Granite 3 (`granitemoe`), training of `input_linear` over GGUF files, which split it",
    },
    FamilyRow {
        entries: &["lfm2", "lfm2_moe"],
        models: "LFM2 and LFM2.5: 350M, 700M, 1.2B and 2.6B dense, 8B-A1B, 24B-A2B",
        calls: &[("LFM2", "")],
        reasoning: &[(THINK, "LFM2.5")],
        not_supported: "LFM2-VL as safetensors (`lfm2_vl`)",
    },
    FamilyRow {
        entries: &["smollm3"],
        models: "SmolLM3: 3B",
        calls: &[(HERMES, "")],
        reasoning: &[(THINK, "")],
        not_supported: "",
    },
    FamilyRow {
        entries: &["olmo2", "olmo3"],
        models: "OLMo 2: 1B, 7B, 13B, 32B; Olmo 3: 7B, 32B",
        calls: &[],
        reasoning: &[],
        not_supported: "OLMo 1 (`olmo`), OLMoE (`olmoe`)",
    },
    FamilyRow {
        entries: &["cohere", "cohere2", "cohere2_moe"],
        models: "Command R, R+ (104B), R7B and A (111B); Aya 23 and Aya Expanse: 8B to 35B; Tiny Aya; with experts: Command A+, North Mini",
        calls: &[],
        reasoning: &[("<|START_THINKING|>", "Command R7B, A")],
        not_supported: "",
    },
    FamilyRow {
        entries: &["exaone4"],
        models: "EXAONE 4.0: 1.2B, 32B",
        calls: &[(HERMES, "")],
        reasoning: &[(THINK, "")],
        not_supported: "EXAONE 3.5 and EXAONE Deep (`exaone`)",
    },
    FamilyRow {
        entries: &["seed_oss"],
        models: "Seed-OSS: 36B",
        calls: &[],
        reasoning: &[("<seed:think>", "")],
        not_supported: "",
    },
    FamilyRow {
        entries: &["hunyuan_v1_dense", "hunyuan_v1_moe"],
        models: "Hunyuan: 0.5B, 1.8B, 4B and 7B dense; Hunyuan-A13B: 80B-A13B",
        calls: &[(HERMES, "dense")],
        reasoning: &[(THINK, "")],
        not_supported: "",
    },
    FamilyRow {
        entries: &["ernie4_5", "ernie4_5_moe"],
        models: "ERNIE 4.5: 0.3B dense, 21B-A3B, 300B-A47B",
        calls: &[],
        reasoning: &[(THINK, "21B-A3B Thinking")],
        not_supported: "ERNIE 4.5 VL (`ernie4_5_moe_vl`), drafting with layers for multi-token prediction, which are not read",
    },
];
