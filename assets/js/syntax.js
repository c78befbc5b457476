// Colors for code: comments, strings, numbers and keywords of the most common languages.

import { h } from "./html.js";

// What a string consists of, up to and with its end. It is not a string if the group of the end matches nothing.
const LINE_STRINGS = { '"': String.raw`"(?:[^"\\\n]|\\.)*(")?`, "'": String.raw`'(?:[^'\\\n]|\\.)*(')?` };
// Without an end, as while they are streamed, these extend to the end of the text.
const TEMPLATE = "`(?:[^`\\\\]|\\\\[^])*(?:(`)|$()|)";
const BLOCK_COMMENT = String.raw`\/\*[^]*?(?:\*\/|$)`;
const NUMBER = String.raw`\b\d[\d_]*(?:\.\d+)?(?:e[+-]?\d+)?\b`;
/** `strings`: an expression for each character that begins a string. */
const language = (comment, strings, keywords) => ({
  tokens: new RegExp(`(${comment})|([${Object.keys(strings).join("")}])|(${NUMBER})|\\b(${keywords})\\b`, "g"),
  strings: Object.fromEntries(Object.entries(strings).map(([quote, string]) => [quote, new RegExp(string, "y")])),
});
const PYTHON = language("#.*", { ...LINE_STRINGS, '"': `"""[^]*?("""|$)|${LINE_STRINGS['"']}` }, "and|as|async|await|break|class|continue|def|elif|else|except|False|finally|for|from|if|import|in|is|lambda|None|not|or|pass|raise|return|True|try|while|with|yield");
const JAVASCRIPT = language(String.raw`\/\/.*|${BLOCK_COMMENT}`, { ...LINE_STRINGS, "`": TEMPLATE }, "async|await|break|case|catch|class|const|continue|default|else|export|extends|false|finally|for|from|function|if|import|in|interface|let|new|null|of|return|switch|this|throw|true|try|type|typeof|undefined|var|while|yield");
const JSON_TEXT = language("(?!)", LINE_STRINGS, "true|false|null");
const SHELL = language("(?<=^|\\s)#.*", { '"': String.raw`"(?:[^"\\]|\\[^])*(")?`, "'": "'[^']*(')?" }, "case|do|done|elif|else|esac|export|fi|for|function|if|in|return|then|while");
const RUST = language(String.raw`\/\/.*|${BLOCK_COMMENT}`, { '"': String.raw`"(?:[^"\\]|\\.)*(")?` }, "as|async|await|break|const|continue|else|enum|false|fn|for|if|impl|in|let|loop|match|mod|mut|pub|ref|return|self|Self|static|struct|trait|true|type|use|where|while");
const LANGUAGES = {
  python: PYTHON, py: PYTHON, javascript: JAVASCRIPT, js: JAVASCRIPT, jsx: JAVASCRIPT, typescript: JAVASCRIPT, ts: JAVASCRIPT, tsx: JAVASCRIPT, json: JSON_TEXT, jsonl: JSON_TEXT,
  bash: SHELL, sh: SHELL, shell: SHELL, curl: SHELL, rust: RUST, rs: RUST,
};
const CLASSES = ["comment", "string", "number", "keyword"];
// Longer texts stay plain, because they may still grow and are rendered with every update.
const MAX_LENGTH = 20_000;

/** Finds the ends of strings in a text that is read from start to end. */
class Strings {
  // Up to these positions, what begins with a quote has no end. The quotes in it are escaped, so nothing that begins with them has one.
  unclosed = {};

  constructor(text, strings) {
    Object.assign(this, { text, strings });
  }

  /** The end of the string that begins with the quote at `start`, or null. */
  end(start) {
    const quote = this.text[start];
    if (start < (this.unclosed[quote] ?? 0)) return null;
    const string = this.strings[quote];
    string.lastIndex = start;
    const [, ...ends] = string.exec(this.text);
    const isClosed = ends.some((end) => end !== undefined);
    if (!isClosed) this.unclosed[quote] = string.lastIndex;
    return isClosed ? string.lastIndex : null;
  }
}

/** The code as a list of strings and colored spans. Code in other languages stays plain. */
export function colored(text, name) {
  const found = LANGUAGES[name?.toLowerCase()];
  if (!found || text.length > MAX_LENGTH) return text;
  const strings = new Strings(text, found.strings);
  const tokens = new RegExp(found.tokens);
  const nodes = [];
  let at = 0;
  for (let match; (match = tokens.exec(text)); ) {
    const end = match[2] ? strings.end(match.index) : tokens.lastIndex;
    if (end === null) continue;
    tokens.lastIndex = end;
    nodes.push(text.slice(at, match.index), h("span", { class: CLASSES[match.slice(1).findIndex((group) => group !== undefined)] }, text.slice(match.index, end)));
    at = end;
  }
  return [...nodes, text.slice(at)];
}
