/** Answers as HTML. A model writes whatever it likes, so nothing it writes may do anything. */

import DOMPurify from "dompurify";
import { Lexer, Marked, type Token, type TokensList } from "marked";
import { element } from "./dom.js";

/**
 * Most quotes, lists, emphases and the like one inside the other. Each level is read once more and takes
 * its share of the stack: without a bound a short text could take seconds, and how deep one may be
 * would depend on the browser and on what it has compiled.
 */
const MAX_NESTING = 64;

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    // Markup in an answer is shown, not obeyed.
    html: ({ text, block }) => (block ? `<p>${escapeHtml(text)}</p>` : escapeHtml(text)),
    // An image would be fetched from somewhere, and nothing on this page goes out by itself.
    image: ({ text, href }) => escapeHtml(text === "" ? href : text),
  },
});

const ALLOWED_TAGS = [
  "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre",
  "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
];

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node instanceof HTMLAnchorElement) {
    node.target = "_blank";
    node.rel = "noopener noreferrer nofollow";
  }
});

/** Shows a markdown text in `target`, and as it is where it is too deeply nested to be formatted. */
export function renderMarkdown(target: HTMLElement, text: string): void {
  try {
    const lexer = new BoundedLexer(marked.defaults);
    target.replaceChildren(sanitized(marked.parser(lexer.lex(text))));
  } catch {
    target.replaceChildren(element("p", "plain", text));
  }
}

/** Throws a RangeError where a text is nested more deeply than {@link MAX_NESTING}. */
class BoundedLexer extends Lexer {
  #depth = 0;

  override blockTokens(...args: Parameters<Lexer["blockTokens"]>): TokensList {
    // Of the overloads the first is taken, which says less.
    return this.#nested(() => super.blockTokens(...args) as TokensList);
  }

  override inlineTokens(...args: Parameters<Lexer["inlineTokens"]>): Token[] {
    return this.#nested(() => super.inlineTokens(...args));
  }

  #nested<T>(tokens: () => T): T {
    if (this.#depth === MAX_NESTING) {
      throw new RangeError(`more than ${MAX_NESTING} levels`);
    }
    this.#depth += 1;
    const result = tokens();
    this.#depth -= 1;
    return result;
  }
}

function sanitized(html: string): DocumentFragment {
  return DOMPurify.sanitize(html, {
    ALLOWED_TAGS,
    ALLOWED_ATTR: ["href", "start"],
    ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
    RETURN_DOM_FRAGMENT: true,
  });
}

function escapeHtml(text: string): string {
  const span = document.createElement("span");
  span.textContent = text;
  return span.innerHTML;
}
