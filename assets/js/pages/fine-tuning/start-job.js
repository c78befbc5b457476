// The form of a new job.

import { html, useState } from "../../html.js";
import { all, post } from "../../api.js";
import { number } from "../../format.js";
import { t } from "../../strings.js";
import { Disclosure, FormDialog, SelectField, TextField, useAction, useFieldErrors, useLoad, useModels } from "../../ui.js";

// Hyperparameters that are numbers. The server knows their ranges.
const NUMBERS = ["n_epochs", "batch_size", "learning_rate_multiplier", "beta", "lora_rank", "lora_alpha", "lora_dropout", "max_length"];
const HYPERPARAMETERS = [...NUMBERS, "target_modules", "packing"];
const FIELDS = ["name", "model", "training_file", "validation_file", "suffix", "seed"];
const PACKING = [["", t.tuning.auto], ["true", t.tuning.yes], ["false", t.tuning.no]];

/** The hyperparameters of a form that are not empty; the others are "auto". */
function hyperparametersOf(form) {
  const given = Object.fromEntries(NUMBERS.filter((name) => form[name] && (name !== "beta" || form.method === "dpo")).map((name) => [name, Number(form[name])]));
  const modules = form.target_modules.split(",").map((name) => name.trim()).filter(Boolean);
  if (modules.length) given.target_modules = modules;
  if (form.packing) given.packing = form.packing === "true";
  return given;
}

export function StartJob({ project, close }) {
  const [form, setForm] = useState({ method: "supervised", ...Object.fromEntries([...FIELDS, ...HYPERPARAMETERS].map((name) => [name, ""])) });
  const [models, modelsError] = useModels("chat_completions");
  const [files, filesError] = useLoad(() => all("/files", { project_id: project.id, purpose: "fine-tune" }), [project.id]);
  // An adapter cannot be trained again.
  const bases = models?.filter((model) => !model.base_model && !model.alias_of);
  const model = form.model || bases?.[0]?.id;
  const isForMethod = (file) => (file.example_format === "preference") === (form.method === "dpo");
  const trainingFile = form.training_file || (files?.find(isForMethod) ?? files?.[0])?.id;
  const [start, busy, error] = useAction(() => post("/fine_tuning/jobs", {
    project_id: project.id, model, training_file: trainingFile, validation_file: form.validation_file || undefined, name: form.name || undefined, suffix: form.suffix || undefined,
    seed: form.seed ? Number(form.seed) : undefined, method: { type: form.method, [form.method]: { hyperparameters: hyperparametersOf(form) } },
  }));
  const submit = async () => {
    const job = await start();
    if (job) location.hash = `#/tuning/${job.id}`;
  };
  const [errorOf, otherError] = useFieldErrors(error, [...FIELDS, ...HYPERPARAMETERS]);
  /** The properties of a field. */
  const field = (name) => ({ value: form[name], error: errorOf(name), onInput: (value) => setForm((before) => ({ ...before, [name]: value })) });
  const hyperparameter = (name) => ({ label: t.tuning.hyperparameter[name], hint: t.tuning.hyperparameterHints[name], ...field(name) });
  const fileOptions = (files ?? []).map((file) => [file.id, t.tuning.fileOption(file.filename, t.tuning.formats[file.example_format] ?? file.example_format, number(file.examples), file.examples)]);
  return html`<${FormDialog} title=${t.tuning.startJob} action=${t.tuning.start} ...${{ close, submit, busy: busy || !model || !trainingFile, error: otherError ?? modelsError ?? filesError }}>
    <${TextField} label=${t.name} ...${field("name")} maxlength="256" autofocus />
    <${SelectField} label=${t.tuning.method} ...${field("method")} hint=${t.tuning.methodHints[form.method]} options=${Object.entries(t.tuning.methods)} />
    <${SelectField} label=${t.tuning.model} ...${field("model")} value=${model} hint=${bases?.length === 0 ? t.tuning.noModels : undefined} options=${(bases ?? []).map(({ id }) => [id, id])} />
    <${SelectField} label=${t.tuning.training} ...${field("training_file")} value=${trainingFile} options=${fileOptions} />
    <${SelectField} label=${t.tuning.validation} ...${field("validation_file")} hint=${t.tuning.validationHint} options=${[["", t.tuning.noValidation], ...fileOptions]} />
    <div class="two-columns"><${TextField} label=${t.tuning.suffix} ...${field("suffix")} hint=${t.tuning.suffixHint} />
      <${TextField} label=${t.tuning.seed} ...${field("seed")} type="number" placeholder=${t.tuning.randomSeed} /></div>
    <${Disclosure} label=${t.tuning.advanced} open=${HYPERPARAMETERS.some(errorOf)}>
      <p class="muted">${t.tuning.advancedHint}</p>
      <div class="two-columns">
        ${NUMBERS.filter((name) => name !== "beta" || form.method === "dpo").map((name) => html`<${TextField} key=${name} ...${hyperparameter(name)} type="number" step="any" placeholder=${t.tuning.auto} />`)}
        <${SelectField} ...${hyperparameter("packing")} options=${PACKING} />
      </div>
      <${TextField} ...${hyperparameter("target_modules")} placeholder=${t.tuning.auto} spellcheck="false" />
    <//>
  <//>`;
}
