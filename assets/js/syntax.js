// Colors for code: comments, strings, numbers and keywords of the most common languages.

import { h } from "./html.js";

const STRING = String.raw`"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'`;
// Without an end, as while they are streamed, these extend to the end of the text.
const TEMPLATE = "`(?:[^`\\\\]|\\\\[^])*(?:`|$)";
const BLOCK_COMMENT = String.raw`\/\*[^]*?(?:\*\/|$)`;
const NUMBER = String.raw`\b\d[\d_]*(?:\.\d+)?(?:e[+-]?\d+)?\b`;
const language = (comment, string, keywords) => new RegExp(`(${comment})|(${string})|(${NUMBER})|\\b(${keywords})\\b`, "g");
const PYTHON = language("#.*", `"""[^]*?(?:"""|$)|${STRING}`, "and|as|async|await|break|class|continue|def|elif|else|except|False|finally|for|from|if|import|in|is|lambda|None|not|or|pass|raise|return|True|try|while|with|yield");
const JAVASCRIPT = language(String.raw`\/\/.*|${BLOCK_COMMENT}`, `${STRING}|${TEMPLATE}`, "async|await|break|case|catch|class|const|continue|default|else|export|extends|false|finally|for|from|function|if|import|in|interface|let|new|null|of|return|switch|this|throw|true|try|type|typeof|undefined|var|while|yield");
const JSON_TEXT = language("(?!)", STRING, "true|false|null");
const SHELL = language("(?<=^|\\s)#.*", String.raw`"(?:[^"\\]|\\[^])*"|'[^']*'`, "case|do|done|elif|else|esac|export|fi|for|function|if|in|return|then|while");
const RUST = language(String.raw`\/\/.*|${BLOCK_COMMENT}`, String.raw`"(?:[^"\\]|\\.)*"`, "as|async|await|break|const|continue|else|enum|false|fn|for|if|impl|in|let|loop|match|mod|mut|pub|ref|return|self|Self|static|struct|trait|true|type|use|where|while");
const LANGUAGES = {
  python: PYTHON, py: PYTHON, javascript: JAVASCRIPT, js: JAVASCRIPT, jsx: JAVASCRIPT, typescript: JAVASCRIPT, ts: JAVASCRIPT, tsx: JAVASCRIPT, json: JSON_TEXT, jsonl: JSON_TEXT,
  bash: SHELL, sh: SHELL, shell: SHELL, curl: SHELL, rust: RUST, rs: RUST,
};
const CLASSES = ["comment", "string", "number", "keyword"];
// Longer texts stay plain, because they may still grow and are rendered with every update.
const MAX_LENGTH = 20_000;

/** The code as a list of strings and colored spans. Code in other languages stays plain. */
export function colored(text, name) {
  const tokens = LANGUAGES[name?.toLowerCase()];
  if (!tokens || text.length > MAX_LENGTH) return text;
  const nodes = [];
  let at = 0;
  for (const match of text.matchAll(tokens)) {
    nodes.push(text.slice(at, match.index), h("span", { class: CLASSES[match.slice(1).findIndex((group) => group !== undefined)] }, match[0]));
    at = match.index + match[0].length;
  }
  return [...nodes, text.slice(at)];
}
