/** Small helpers for the document. */

/** The element with this id; the page is broken without it. */
export function byId<T extends HTMLElement>(id: string, type: new () => T): T {
  const element = document.getElementById(id);
  if (!(element instanceof type)) {
    throw new TypeError(`The page has no ${type.name} with the id ${id}.`);
  }
  return element;
}

/** A new element with a class and a text. */
export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  className = "",
  text = "",
): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = text;
  return node;
}

/** An icon of the sprite in the page. */
export function icon(name: string): SVGSVGElement {
  const namespace = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(namespace, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(namespace, "use");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

/** A quiet button with an icon and a text. */
export function iconButton(iconName: string, text: string, onClick: () => void): HTMLButtonElement {
  const button = element("button", "button quiet");
  button.type = "button";
  button.append(icon(iconName), element("span", "", text));
  button.addEventListener("click", onClick);
  return button;
}

/** A quiet button that is an icon, with its name for pointers and screen readers. */
export function iconOnlyButton(iconName: string, name: string, onClick: () => void): HTMLButtonElement {
  const button = element("button", "button quiet square");
  button.type = "button";
  button.title = name;
  button.ariaLabel = name;
  button.append(icon(iconName));
  button.addEventListener("click", onClick);
  return button;
}

/** A small button with a text. */
export function textButton(text: string, onClick: () => void): HTMLButtonElement {
  const button = element("button", "button small", text);
  button.type = "button";
  button.addEventListener("click", onClick);
  return button;
}

/** How long a button says what it has done. */
const COPIED_MS = 1500;

/** A quiet button that copies a text, and says so. As an icon it has its text for screen readers alone. */
export function copyButton(label: string, text: () => string, form: "icon" | "text" = "text"): HTMLButtonElement {
  const button = iconButton("copy", label, () => {
    void copy(text()).then((isCopied) => {
      show(isCopied ? "check" : "copy", isCopied ? "Copied" : "Copying is not allowed here");
      setTimeout(() => show("copy", label), COPIED_MS);
    });
  });
  const show = (iconName: string, caption: string): void => {
    button.replaceChildren(icon(iconName), element("span", form === "icon" ? "visually-hidden" : "", caption));
    button.title = form === "icon" ? caption : "";
  };
  show("copy", label);
  return button;
}

async function copy(text: string): Promise<boolean> {
  try {
    // Outside of secure contexts there is no clipboard.
    await (navigator.clipboard as Clipboard | undefined)?.writeText(text);
    return "clipboard" in navigator;
  } catch {
    return false;
  }
}
