// The settings of a chat.

import { html } from "../../html.js";
import { t } from "../../strings.js";
import { Foldable, SelectField, TextArea, TextField } from "../../ui.js";
import { NUMBERS } from "./chat-request.js";

const RANGES = { temperature: { min: 0, max: 2, step: "any" }, top_p: { min: 0, max: 1, step: "any" }, max_completion_tokens: { min: 1 }, seed: {} };
const SCHEMA_EXAMPLE = '{"type": "object",\n "properties": {"city": {"type": "string"}},\n "required": ["city"]}';

/** `other`: the model to compare with, if there is one. Tools, agents and conversations are for chats with a single model. */
export function Settings({ settings, set, models, agents, conversations, canManage, busy, selectConversation, other = "", selectOther }) {
  // A model in the address may not exist.
  const optionsWith = (id) => [...models, ...(!id || models.some((model) => model.id === id) ? [] : [{ id }])].map((model) => [model.id, model.id]);
  const modelOptions = optionsWith(settings.model);
  const agent = agents?.find((one) => one.id === settings.agent);
  const toOption = (agent) => [agent.id, agent.name ?? agent.id];
  const chooseAgent = (id) => {
    set("agent")(id);
    set("model")(id && agents.find((one) => one.id === id)?.model ? "" : settings.model || models[0].id);
  };
  const listed = conversations?.map((one) => [one.id, one.preview ?? one.id]) ?? [];
  const isListed = !settings.conversation || settings.conversation === "new" || listed.some(([id]) => id === settings.conversation);
  return html`<${Foldable} label=${t.chat.settings} icon="tuning" className="card settings">
    <${SelectField} label=${t.playground.model} value=${settings.model} onInput=${set("model")} options=${agent?.model ? [["", t.chat.agentModel], ...modelOptions] : modelOptions} />
    ${models.length > 1 && html`<${SelectField} label=${t.chat.compareWith} value=${other} onInput=${selectOther} disabled=${busy} options=${[["", t.chat.noComparison], ...optionsWith(other)]} />`}
    ${agents?.length > 0 && html`<${SelectField} label=${t.chat.agent} value=${settings.agent} onInput=${chooseAgent} options=${[["", t.chat.noAgent], ...agents.map(toOption)]} />`}
    ${canManage && html`<${SelectField} label=${t.chat.conversation} value=${settings.conversation} onInput=${selectConversation} disabled=${busy}
      options=${[["", t.chat.noConversation], ["new", t.chat.newConversation], ...(isListed ? [] : [[settings.conversation, settings.conversation]]), ...listed]} />`}
    <${TextArea} label=${t.chat.system} value=${settings.system} onInput=${set("system")} rows="2" placeholder=${t.chat.systemExample} />
    <div class="two-columns">${NUMBERS.map((name) => html`<${TextField} key=${name} label=${t.chat[name]} type="number" ...${RANGES[name]} value=${settings[name]} onInput=${set(name)} placeholder=${t.chat.placeholders[name]} />`)}</div>
    <${SelectField} label=${t.chat.format} value=${settings.format} onInput=${set("format")} options=${Object.entries(t.chat.formats)} />
    ${settings.format === "json_schema" && html`<${TextArea} class="code" label=${t.chat.schema} value=${settings.schema} onInput=${set("schema")} rows="5" spellcheck="false" placeholder=${SCHEMA_EXAMPLE} />`}
    ${!other && html`<${TextArea} class="code" label=${t.chat.tools} hint=${t.toolsHint} value=${settings.tools} onInput=${set("tools")} rows="2" spellcheck="false" placeholder=${t.chat.noTools} />`}
    ${(settings.tools.trim() || agent?.tools?.length > 0) && html`<${SelectField} label=${t.chat.tool_choice} value=${settings.tool_choice} onInput=${set("tool_choice")} options=${Object.entries(t.chat.toolChoices)} />`}
  <//>`;
}
