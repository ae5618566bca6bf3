// A little Markdown, into elements. What the model says becomes text nodes and nothing else: no markup of its own, no
// pictures, links to http, https and mailto only.

/** Shows `text` in `root`. Blocks that did not change since the last call stay as they are, selections included. */
export function show(root, text) {
  const sources = blocks(text);
  sources.forEach((source, index) => {
    const old = root.children[index];
    if (old?.source === source) return;
    const made = block(source);
    made.source = source;
    if (old) old.replaceWith(made);
    else root.append(made);
  });
  while (root.children.length > sources.length) root.lastChild.remove();
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const HEADING = /^(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const ROW = /^\s*\|.*\|\s*$/;
const DASHES = /^\s*\|(\s*:?-+:?\s*\|)+\s*$/;
const QUOTE = /^ {0,3}> ?/;

/** The source of each block, in order. */
function blocks(text) {
  const found = [];
  let lines = [];
  let fence = null;
  const close = () => {
    if (lines.length) found.push(lines.join("\n"));
    lines = [];
  };
  for (const line of text.split("\n")) {
    if (fence) {
      lines.push(line);
      if (line.trim().startsWith(fence) && !line.trim().slice(fence.length).replaceAll(fence[0], "")) {
        fence = null;
        close();
      }
      continue;
    }
    const opens = FENCE.exec(line);
    if (opens) {
      close();
      fence = opens[1];
      lines.push(line);
    } else if (!line.trim()) {
      close();
    } else if (HEADING.test(line) || RULE.test(line)) {
      close();
      lines.push(line);
      close();
    } else {
      if (lines.length && kind(lines[0]) !== kind(line) && !continues(lines, line)) close();
      lines.push(line);
    }
  }
  close();
  return found;
}

function kind(line) {
  if (ITEM.test(line)) return "list";
  if (QUOTE.test(line)) return "quote";
  return ROW.test(line) ? "table" : "text";
}

/** Plain lines go on with a list item or a quotation that stands before them. */
function continues(lines, line) {
  return kind(line) === "text" && ["list", "quote"].includes(kind(lines[0]));
}

function block(source) {
  const lines = source.split("\n");
  const fence = FENCE.exec(lines[0]);
  if (fence) return code(lines, fence[1], fence[2]);
  const heading = HEADING.exec(source);
  // The page's own headings are h1 and h2.
  if (heading) return inline(make(`h${Math.min(heading[1].length + 2, 6)}`), heading[2]);
  if (RULE.test(source)) return make("hr");
  if (kind(lines[0]) === "list") return list(lines);
  if (kind(lines[0]) === "quote") return quote(lines);
  if (lines.length > 1 && kind(lines[0]) === "table" && DASHES.test(lines[1])) return table(lines);
  return inline(make("p"), source);
}

function code(lines, fence, language) {
  const closed = lines.length > 1 && lines.at(-1).trim().startsWith(fence);
  const text = lines.slice(1, closed ? -1 : undefined).join("\n");
  const figure = make("figure");
  const caption = make("figcaption");
  const copy = make("button");
  copy.type = "button";
  copy.textContent = "Copy";
  copy.addEventListener("click", () => copyFrom(pre, copy));
  caption.append(language || "text", copy);
  const pre = make("pre");
  pre.tabIndex = 0;
  pre.append(make("code"));
  pre.firstChild.textContent = text;
  figure.append(caption, pre);
  return figure;
}

/** Browsers give pages of plain http on other machines no clipboard: there the text is selected instead. */
async function copyFrom(pre, button) {
  try {
    await navigator.clipboard.writeText(pre.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(pre);
    button.textContent = "Selected";
  }
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

function list(lines) {
  const root = make(/^\s*\d/.test(lines[0]) ? "ol" : "ul");
  if (root.tagName === "OL") root.start = parseInt(lines[0], 10);
  const open = [{ indent: ITEM.exec(lines[0])[1].length, list: root }];
  let item = null;
  let text = "";
  const close = () => item && inline(item, text);
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (!found) {
      text += "\n" + line.trim();
      continue;
    }
    close();
    const indent = found[1].length;
    while (open.length > 1 && indent < open.at(-1).indent) open.pop();
    if (item && indent > open.at(-1).indent + 1) {
      const nested = make(/^\d/.test(found[2]) ? "ol" : "ul");
      item.append(nested);
      open.push({ indent, list: nested });
    }
    item = make("li");
    text = found[3];
    open.at(-1).list.append(item);
  }
  close();
  return root;
}

function quote(lines) {
  const root = make("blockquote");
  show(root, lines.map((line) => line.replace(QUOTE, "")).join("\n"));
  return root;
}

function table(lines) {
  const cells = (line) => line.trim().slice(1, -1).split("|");
  const row = (line, name) => {
    const made = make("tr");
    for (const cell of cells(line)) made.append(inline(make(name), cell.trim()));
    return made;
  };
  const head = make("thead");
  head.append(row(lines[0], "th"));
  const body = make("tbody");
  for (const line of lines.slice(2)) body.append(row(line, "td"));
  const root = make("table");
  root.append(head, body);
  const scroller = make("div");
  scroller.className = "table";
  scroller.append(root);
  return scroller;
}

const INLINE =
  /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\*\*(\S|\S[\s\S]*?\S)\*\*|(?<![*\w])\*([^*\s]|[^*\s][^*]*?[^*\s])\*(?!\*)|\[([^\]\n]+)\]\(([^()\s]+)\)/g;

/** Appends `text` to `root` with its code, emphasis and links, before anything that `root` has already. */
function inline(root, text) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    const [whole, ticks, code, strong, emphasis, label, address] = found;
    let made;
    if (ticks) {
      made = make("code");
      made.textContent = code.trim() || code;
    } else if (strong) {
      made = inline(make("strong"), strong);
    } else if (emphasis) {
      made = inline(make("em"), emphasis);
    } else {
      made = link(label, address);
      if (!made) continue;
    }
    parts.push(text.slice(at, found.index), made);
    at = found.index + whole.length;
  }
  parts.push(text.slice(at));
  root.prepend(...parts);
  return root;
}

function link(label, address) {
  if (!/^(https?:\/\/|mailto:)/i.test(address)) return null;
  const made = make("a");
  made.href = address;
  made.target = "_blank";
  made.rel = "noopener noreferrer";
  made.append(label);
  return made;
}

function make(name) {
  return document.createElement(name);
}
