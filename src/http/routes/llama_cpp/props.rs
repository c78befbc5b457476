//! llama.cpp's properties of a server: the model, its context and its defaults.

use actix_web::{get, web};
use serde::{Deserialize, Serialize};

use crate::calls::text::tokenization::DescribedModel;
use crate::engine::{GenerationDefaults, Sampling, sampling_parameters};
use crate::http::extractors::ApiParams;
use crate::http::response::ApiResult;
use crate::http::{Api, authentication::Caller};

/// The seed that stands for a random one.
const RANDOM_SEED: i64 = -1;
/// The number of tokens that stands for no limit.
const UNLIMITED: i64 = -1;

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct GetProps {
    /// Id of an installed model that generates text; absent: the only one that the key may use.
    model: Option<String>,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = LlamaCppProps)]
pub struct PropsBody {
    default_generation_settings: GenerationSettings,
    /// Max choices that each device generates at once, across all models.
    total_slots: usize,
    /// The model's name in requests.
    model_alias: String,
    /// The same; where the server keeps the model is not shown.
    model_path: String,
    modalities: Modalities,
    /// A Jinja template; empty if the model has none.
    chat_template: String,
    bos_token: String,
    eos_token: String,
    /// The name and version of this server.
    build_info: &'static str,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = LlamaCppGenerationSettings)]
struct GenerationSettings {
    /// Max tokens of prompt and output together.
    n_ctx: usize,
    params: Params,
}

macro_rules! params {
    ({} $(
        $(#[$doc:meta])* $name:ident $([$other:ident])? as $llama:ident: $type:ty, $sent:ty, $default:expr, $rule:expr,
        $servers:expr;
    )+) => {
        /// The parameters of requests that do not set them.
        #[derive(Serialize, utoipa::ToSchema)]
        #[schema(as = LlamaCppParams)]
        struct Params {
            /// -1: another one for each request.
            seed: i64,
            $($llama: $type,)+
            /// -1: up to the end of the context.
            n_predict: i64,
            stop: Vec<String>,
        }

        impl Params {
            fn new(defaults: &GenerationDefaults) -> Self {
                let mut sampling = Sampling::default();
                defaults.sampling.apply(&mut sampling);
                Self {
                    seed: defaults.seed.map_or(RANDOM_SEED, u64::cast_signed),
                    $($llama: sampling.$name,)+
                    n_predict: defaults.max_tokens.map_or(UNLIMITED, i64::from),
                    stop: defaults.stop.clone().unwrap_or_default(),
                }
            }
        }
    };
}
sampling_parameters!({ params } {});

/// What the model takes besides text.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = LlamaCppModalities)]
struct Modalities {
    vision: bool,
    audio: bool,
}

/// The properties of the server with one of its models, in the format of llama.cpp. They cannot be changed here.
#[utoipa::path(tag = "llama-cpp", params(GetProps), responses((status = 200, body = PropsBody)))]
#[get("/props")]
pub async fn read(caller: Caller, params: ApiParams<GetProps>, api: web::Data<Api>) -> ApiResult {
    let described = api.tokenization.describe(&caller.access, params.0.model, &caller.recorder);
    let DescribedModel { id, name, tokenizer, max_tokens, defaults } = described.await?;
    let body = PropsBody {
        default_generation_settings: GenerationSettings { n_ctx: max_tokens, params: Params::new(&defaults) },
        total_slots: api.models.slots(),
        model_alias: name.clone(),
        model_path: name,
        modalities: Modalities { vision: false, audio: false },
        chat_template: tokenizer.chat_template.unwrap_or_default(),
        bos_token: tokenizer.bos.unwrap_or_default(),
        eos_token: tokenizer.eos.unwrap_or_default(),
        build_info: concat!("outpost ", env!("CARGO_PKG_VERSION")),
    };
    Ok(caller.mount.bare(id, body))
}
