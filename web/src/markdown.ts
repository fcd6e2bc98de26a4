/** Answers as HTML. A model writes whatever it likes, so nothing it writes may do anything. */

import DOMPurify from "dompurify";
import { Marked } from "marked";
import { element } from "./dom.js";

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
    target.replaceChildren(sanitized(marked.parse(text, { async: false })));
  } catch {
    target.replaceChildren(element("p", "plain", text));
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
