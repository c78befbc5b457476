//! A model's description, without loading it.
//!
//! The capabilities of a model are what this server does with it today, not what it could do elsewhere. A model with a
//! problem has none.

use outpost_common::clock_rng::Timestamp;
use outpost_upstream::Kind;
use serde::Deserialize;

/// The folder for adapters. It is not a model.
pub const LORAS: &str = "loras";

/// The format of models that other servers run.
pub const UPSTREAM_FORMAT: &str = "upstream";

macro_rules! kinds {
    ($($(#[$attribute:meta])* $kind:ident => $name:literal $input:tt $output:tt,)+) => {
        /// What a model does: a row of the table with its name and the modalities of its input and output.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
        pub enum ModelKind { $($(#[$attribute])* #[serde(rename = $name)] $kind,)+ }

        impl ModelKind {
            /// Every row of the table, in its order.
            pub const ALL: &'static [Self] = &[$(Self::$kind,)+];

            /// The name in texts and in the catalog: `chat`.
            pub fn name(self) -> &'static str { match self { $(Self::$kind => $name,)+ } }

            /// What a model reads, and what it generates.
            pub fn modalities(self) -> (&'static [&'static str], &'static [&'static str]) {
                match self { $(Self::$kind => (&$input, &$output),)+ }
            }
        }
    };
}

kinds! {
    Text          => "chat"           ["text"]          ["text"],
    Embedding     => "embedding"      ["text"]          ["embedding"],
    /// A cross-encoder: scores how well a document answers a query.
    Reranker      => "reranking"      ["text"]          ["score"],
    /// Scores how well each of its labels fits a text.
    Classifier    => "classification" ["text"]          ["score"],
    Image         => "image"          ["text", "image"] ["image"],
    Transcription => "transcription"  ["audio"]         ["text"],
    Speech        => "speech"         ["text"]          ["audio"],
    #[serde(skip_deserializing)]
    Unknown       => "known"          []                [],
}

impl From<Kind> for ModelKind {
    fn from(upstream: Kind) -> Self {
        match upstream {
            Kind::Chat | Kind::Completion => Self::Text,
            Kind::Embedding => Self::Embedding,
            Kind::Rerank => Self::Reranker,
            Kind::Image => Self::Image,
            Kind::Transcription => Self::Transcription,
            Kind::Speech => Self::Speech,
        }
    }
}

impl ModelInfo {
    /// True for upstream models, which another server runs.
    pub fn is_upstream(&self) -> bool {
        self.format == UPSTREAM_FORMAT
    }

    /// Describes an adapter as one of the model `base`.
    pub fn set_base(&mut self, base: &Self) {
        self.architecture.clone_from(&base.architecture);
        self.kind = base.kind;
        self.embedding_dimensions = base.embedding_dimensions;
        self.context_window = base.context_window;
        (self.width, self.infills, self.has_chat_template) = (base.width, base.infills, base.has_chat_template);
        self.device.clone_from(&base.device);
        self.base = Some(base.id.clone());
    }
}

/// A model on disk.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    pub id: String,
    /// When the newest file was last written.
    pub created: Timestamp,
    pub owned_by: String,
    pub architecture: String,
    /// The ID of the base model, if it is an adapter.
    pub base: Option<String>,
    pub kind: ModelKind,
    /// `gguf`, `safetensors`, `ggml` or `upstream`.
    pub format: &'static str,
    /// The data type of most weights: `Q4_1`, `F32`.
    pub quantization: Option<String>,
    pub parameters: u64,
    pub bytes: u64,
    pub context_window: Option<u32>,
    pub embedding_dimensions: Option<u32>,
    /// The labels of a classification model.
    pub labels: Vec<String>,
    /// Set for classifiers with labels of harmful content, according to the table of labels and the settings.
    pub moderates: bool,
    /// The width of the network, if its file names it.
    pub width: Option<u32>,
    /// False for base models, which have no chat template and only complete texts.
    pub has_chat_template: bool,
    /// Set if the GGUF file has tokens for fill-in-the-middle prompts.
    pub infills: bool,
    /// The sizes of images that the model is good at, as width and height in pixels; its default is the first.
    pub image_sizes: Vec<[usize; 2]>,
    pub loaded: bool,
    /// Set in its settings: the model stays loaded.
    pub pinned: bool,
    /// When it will be unloaded if nothing uses it; `None`: when its memory is needed.
    pub unloads_at: Option<Timestamp>,
    /// The model that an alias stands for; `None` if it is not an alias.
    pub alias_of: Option<String>,
    /// The device that runs it: `cpu`, `cuda:0`; `None` outside of a server.
    pub device: Option<String>,
    /// Set if the device stores the weights without quantization, because it has no kernels for their type.
    pub dequantized: bool,
    /// The reason why the model cannot be used; `None` if it can.
    pub problem: Option<String>,
    pub license: Option<String>,
}
