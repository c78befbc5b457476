//! Encoder families, and the Hugging Face names of their tensors. The code uses GGUF's names.

use crate::backend::DType;

use crate::error::ModelError;
use crate::safetensors::ModelFolder;
use crate::weights::{Role, Rows, Weights};

/// Encoder architectures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Devlin et al. 2018, <https://arxiv.org/abs/1810.04805>: MiniLM, bge, e5, gte.
    Bert,
    /// Sanh et al. 2019, <https://arxiv.org/abs/1910.01108>: BERT without types of tokens.
    Distil,
    /// Conneau et al. 2019, <https://arxiv.org/abs/1911.02116>: bge-m3, multilingual-e5.
    Roberta,
    /// Nussbaum et al. 2024, <https://arxiv.org/abs/2402.01613>.
    Nomic,
    /// Song et al. 2020, <https://arxiv.org/abs/2004.09297>: all-mpnet-base.
    Mpnet,
    /// Warner et al. 2024, <https://arxiv.org/abs/2412.13663>.
    Modern,
}

/// `model_type` in `config.json`.
const MODEL_TYPES: &[(&str, Family)] = &[
    ("bert", Family::Bert),
    ("distilbert", Family::Distil),
    ("roberta", Family::Roberta),
    ("xlm-roberta", Family::Roberta),
    ("nomic_bert", Family::Nomic),
    ("modernbert", Family::Modern),
    ("mpnet", Family::Mpnet),
];

/// `general.architecture` in GGUF.
const GGUF_ARCHITECTURES: &[(&str, Family)] = &[("bert", Family::Bert), ("nomic-bert", Family::Nomic)];

type Table = &'static [(&'static str, &'static str)];

/// A family's tensor names.
struct Names {
    /// Names outside of layers.
    model: Table,
    /// The prefix of a layer's tensors.
    layer_prefix: &'static str,
    /// Names in a layer, after `blk.N.` and the prefix.
    layer: Table,
}

const BERT: Names = Names {
    model: &[
        ("token_embd", "embeddings.word_embeddings"),
        ("position_embd", "embeddings.position_embeddings"),
        ("token_types", "embeddings.token_type_embeddings"),
        ("token_embd_norm", "embeddings.LayerNorm"),
    ],
    layer_prefix: "encoder.layer.",
    layer: &[
        ("attn_q", "attention.self.query"),
        ("attn_k", "attention.self.key"),
        ("attn_v", "attention.self.value"),
        ("attn_output", "attention.output.dense"),
        ("attn_output_norm", "attention.output.LayerNorm"),
        ("ffn_up", "intermediate.dense"),
        ("ffn_down", "output.dense"),
        ("layer_output_norm", "output.LayerNorm"),
    ],
};

const DISTIL: Names = Names {
    model: &[
        ("token_embd", "embeddings.word_embeddings"),
        ("position_embd", "embeddings.position_embeddings"),
        ("token_embd_norm", "embeddings.LayerNorm"),
    ],
    layer_prefix: "transformer.layer.",
    layer: &[
        ("attn_q", "attention.q_lin"),
        ("attn_k", "attention.k_lin"),
        ("attn_v", "attention.v_lin"),
        ("attn_output", "attention.out_lin"),
        ("attn_output_norm", "sa_layer_norm"),
        ("ffn_up", "ffn.lin1"),
        ("ffn_down", "ffn.lin2"),
        ("layer_output_norm", "output_layer_norm"),
    ],
};

const MPNET: Names = Names {
    model: &[
        ("token_embd", "embeddings.word_embeddings"),
        ("position_embd", "embeddings.position_embeddings"),
        ("token_embd_norm", "embeddings.LayerNorm"),
        ("attn_rel_b", "encoder.relative_attention_bias"),
    ],
    layer_prefix: "encoder.layer.",
    layer: &[
        ("attn_q", "attention.attn.q"),
        ("attn_k", "attention.attn.k"),
        ("attn_v", "attention.attn.v"),
        ("attn_output", "attention.attn.o"),
        ("attn_output_norm", "attention.LayerNorm"),
        ("ffn_up", "intermediate.dense"),
        ("ffn_down", "output.dense"),
        ("layer_output_norm", "output.LayerNorm"),
    ],
};

const NOMIC: Names = Names {
    model: &[
        ("token_embd", "embeddings.word_embeddings"),
        ("token_types", "embeddings.token_type_embeddings"),
        ("token_embd_norm", "emb_ln"),
    ],
    layer_prefix: "encoder.layers.",
    layer: &[
        ("attn_qkv", "attn.Wqkv"),
        ("attn_output", "attn.out_proj"),
        ("attn_output_norm", "norm1"),
        ("ffn_up", "mlp.fc11"),
        ("ffn_gate", "mlp.fc12"),
        ("ffn_down", "mlp.fc2"),
        ("layer_output_norm", "norm2"),
    ],
};

const MODERN: Names = Names {
    model: &[
        ("token_embd", "embeddings.tok_embeddings"),
        ("token_embd_norm", "embeddings.norm"),
        ("output_norm", "final_norm"),
    ],
    layer_prefix: "layers.",
    layer: &[
        ("attn_norm", "attn_norm"),
        ("attn_qkv", "attn.Wqkv"),
        ("attn_output", "attn.Wo"),
        ("ffn_norm", "mlp_norm"),
        ("ffn_gate_up", "mlp.Wi"),
        ("ffn_down", "mlp.Wo"),
    ],
};

/// Names of a classification head, by family.
const BERT_HEAD: Table = &[("cls", "bert.pooler.dense"), ("cls.output", "classifier")];
const DISTIL_HEAD: Table = &[("cls", "pre_classifier"), ("cls.output", "classifier")];
const ROBERTA_HEAD: Table = &[("cls", "classifier.dense"), ("cls.output", "classifier.out_proj")];
const MODERN_HEAD: Table = &[("cls", "head.dense"), ("cls.norm", "head.norm"), ("cls.output", "classifier")];

fn find(table: Table, stem: &str) -> Option<&'static str> {
    table.iter().find(|(own, _)| *own == stem).map(|(_, name)| *name)
}

impl Family {
    /// The family of a `model_type`.
    pub fn from_model_type(name: &str) -> Option<Self> {
        MODEL_TYPES.iter().find(|(own, _)| *own == name).map(|(_, family)| *family)
    }

    /// The family of a GGUF architecture.
    pub fn from_architecture(name: &str) -> Option<Self> {
        GGUF_ARCHITECTURES.iter().find(|(own, _)| *own == name).map(|(_, family)| *family)
    }

    fn names(self) -> &'static Names {
        match self {
            Self::Bert | Self::Roberta => &BERT,
            Self::Distil => &DISTIL,
            Self::Nomic => &NOMIC,
            Self::Modern => &MODERN,
            Self::Mpnet => &MPNET,
        }
    }

    fn head(self) -> Table {
        match self {
            Self::Bert => BERT_HEAD,
            Self::Distil => DISTIL_HEAD,
            Self::Roberta | Self::Mpnet => ROBERTA_HEAD,
            Self::Nomic => &[],
            Self::Modern => MODERN_HEAD,
        }
    }

    /// The prefix of names if the encoder is part of a larger model.
    fn prefix(self) -> &'static str {
        match self {
            Self::Bert | Self::Nomic => "bert.",
            Self::Distil => "distilbert.",
            Self::Roberta => "roberta.",
            Self::Modern => "model.",
            Self::Mpnet => "mpnet.",
        }
    }
}

/// The weights of an encoder in a Hugging Face folder.
pub struct EncoderWeights<'a> {
    folder: &'a ModelFolder,
    family: Family,
    prefix: &'static str,
}

/// Tensors that only training uses.
const UNUSED: &[&str] = &["embeddings.position_ids", "pooler.", "cls.", "lm_head.", "decoder.", "head.", "vocab_"];

impl<'a> EncoderWeights<'a> {
    pub fn new(folder: &'a ModelFolder, family: Family) -> Self {
        let prefix = family.prefix();
        let has_prefix = folder.names().any(|name| name.starts_with(prefix));
        Self { folder, family, prefix: if has_prefix { prefix } else { "" } }
    }
}

impl Weights for EncoderWeights<'_> {
    fn name(&self, stem: &str, role: Role) -> Option<String> {
        let ending = if role == Role::Weight { "weight" } else { "bias" };
        if let Some(head) = find(self.family.head(), stem) {
            return Some(format!("{head}.{ending}"));
        }
        let (names, prefix) = (self.family.names(), self.prefix);
        Some(match stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            Some((layer, stem)) => {
                format!("{prefix}{}{layer}.{}.{ending}", names.layer_prefix, find(names.layer, stem)?)
            }
            None => format!("{prefix}{}.{ending}", find(names.model, stem)?),
        })
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        Weights::shape(self.folder, name)
    }

    fn dtype(&self, name: &str) -> Option<DType> {
        Weights::dtype(self.folder, name)
    }

    fn rows(&self, name: &str, first: usize, count: usize) -> Result<Rows<'_>, ModelError> {
        Weights::rows(self.folder, name, first, count)
    }

    fn names(&self) -> Vec<String> {
        // The tensors of a classification head are used if there is a classifier.
        let has_classifier = self.folder.names().any(|name| name.starts_with("classifier."));
        let head = |name: &str| has_classifier && self.family.head().iter().any(|(_, prefix)| name.starts_with(prefix));
        let used = |name: &&str| {
            let bare = name.strip_prefix(self.prefix).unwrap_or(name);
            head(name) || !UNUSED.iter().any(|unused| bare.starts_with(unused))
        };
        self.folder.names().filter(used).map(str::to_owned).collect()
    }
}
