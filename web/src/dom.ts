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
