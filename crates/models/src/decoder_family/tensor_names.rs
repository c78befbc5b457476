//! Tensors of families whose names in Hugging Face's files are not Llama's. The stems are those of GGUF.

/// The names of Qwen 3.5's tensors in a layer with a delta network.
pub const QWEN35_NAMES: &[(&str, &str)] = &[
    ("attn_qkv", "linear_attn.in_proj_qkv"),
    ("attn_gate", "linear_attn.in_proj_z"),
    ("ssm_alpha", "linear_attn.in_proj_a"),
    ("ssm_beta", "linear_attn.in_proj_b"),
    ("ssm_conv1d", "linear_attn.conv1d"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
];

/// The names of the tensors of Granite 4 in a layer. transformers calls the network of dense layers shared, too.
pub const GRANITE_HYBRID_NAMES: &[(&str, &str)] = &[
    ("ssm_in", "mamba.in_proj"),
    ("ssm_conv1d", "mamba.conv1d"),
    ("ssm_norm", "mamba.norm"),
    ("ssm_out", "mamba.out_proj"),
    ("ffn_gate_inp", "block_sparse_moe.router.layer"),
    ("ffn_gate_up_exps", "block_sparse_moe.input_linear"),
    ("ffn_down_exps", "block_sparse_moe.output_linear"),
    ("ffn_gate_up", "shared_mlp.input_linear"),
    ("ffn_down", "shared_mlp.output_linear"),
    ("ffn_gate_up_shexp", "shared_mlp.input_linear"),
    ("ffn_down_shexp", "shared_mlp.output_linear"),
];

/// The names of Nemotron-H's tensors.
pub const NEMOTRON_NAMES: &[(&str, &str)] = &[
    ("token_embd", "embeddings"),
    ("output_norm", "norm_f"),
    ("attn_norm", "norm"),
    ("attn_q", "mixer.q_proj"),
    ("attn_k", "mixer.k_proj"),
    ("attn_v", "mixer.v_proj"),
    ("attn_output", "mixer.o_proj"),
    ("ssm_in", "mixer.in_proj"),
    ("ssm_conv1d", "mixer.conv1d"),
    ("ssm_norm", "mixer.norm"),
    ("ssm_out", "mixer.out_proj"),
    ("ffn_up", "mixer.up_proj"),
    ("ffn_down", "mixer.down_proj"),
    ("ffn_gate_inp", "mixer.gate"),
    ("ffn_up_shexp", "mixer.shared_experts.up_proj"),
    ("ffn_down_shexp", "mixer.shared_experts.down_proj"),
];

/// The names of Qwen3-Next's tensors in a layer with a delta network.
pub const QWEN3_NEXT_NAMES: &[(&str, &str)] = &[
    ("ssm_in", "linear_attn.in_proj_qkvz"),
    ("ssm_ba", "linear_attn.in_proj_ba"),
    ("ssm_conv1d", "linear_attn.conv1d"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
];

/// The names of LFM2's tensors in a layer, and of the norm after all layers.
pub const LFM2_NAMES: &[(&str, &str)] = &[
    ("attn_norm", "operator_norm"),
    ("attn_output", "self_attn.out_proj"),
    ("attn_q_norm", "self_attn.q_layernorm"),
    ("attn_k_norm", "self_attn.k_layernorm"),
    ("shortconv.in_proj", "conv.in_proj"),
    ("shortconv.conv", "conv.conv"),
    ("shortconv.out_proj", "conv.out_proj"),
    ("ffn_norm", "ffn_norm"),
    ("ffn_gate", "feed_forward.w1"),
    ("ffn_up", "feed_forward.w3"),
    ("ffn_down", "feed_forward.w2"),
    ("output_norm", "embedding_norm"),
    ("ffn_gate_inp", "feed_forward.gate"),
];

/// The names of Hunyuan's norms of queries and keys, and of tensors of its experts.
pub const HUNYUAN_NAMES: &[(&str, &str)] = &[
    ("attn_q_norm", "self_attn.query_layernorm"),
    ("attn_k_norm", "self_attn.key_layernorm"),
    ("ffn_gate_inp", "mlp.gate.wg"),
    ("ffn_gate_shexp", "mlp.shared_mlp.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_mlp.up_proj"),
    ("ffn_down_shexp", "mlp.shared_mlp.down_proj"),
];

/// The names of tensors of experts that compute every token in DeepSeek and in families after it.
pub const SHARED_EXPERT_NAMES: &[(&str, &str)] = &[
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
];

/// The names of Gemma 4's tensors.
pub const GEMMA4_NAMES: &[(&str, &str)] = &[
    ("per_layer_token_embd", "embed_tokens_per_layer"),
    ("per_layer_model_proj", "per_layer_model_projection"),
    ("per_layer_proj_norm", "per_layer_projection_norm"),
    ("inp_gate", "per_layer_input_gate"),
    ("proj", "per_layer_projection"),
    ("post_norm", "post_per_layer_input_norm"),
    ("ffn_gate_inp", "router.proj"),
    ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
    ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
    ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
];
pub const GEMMA4_BARE_NAMES: &[(&str, &str)] = &[
    ("layer_output_scale", "layer_scalar"),
    ("ffn_gate_inp.scale", "router.scale"),
    ("ffn_down_exps.scale", "router.per_expert_scale"),
    ("ffn_gate_up_exps", "experts.gate_up_proj"),
    ("ffn_down_exps", "experts.down_proj"),
];

/// The names of GLM-4's norms after the first one of a layer.
pub const GLM4_NAMES: &[(&str, &str)] = &[
    ("post_attention_norm", "post_self_attn_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_mlp_layernorm"),
];

/// The names of tensors of layers with latent attention.
pub const LATENT_NAMES: &[(&str, &str)] = &[
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_kv_b", "self_attn.kv_b_proj"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
];
