// Messages on the page. Text of the model and of the user becomes text nodes, here and in markdown.js.

import { show } from "./markdown.js";

/** What the user said. */
export function userMessage(text) {
  const root = article("user", "You");
  const said = make("p", "said", text);
  // Long ones scroll by themselves, with keys too.
  said.tabIndex = 0;
  root.append(said);
  return root;
}

/** A tool's answer, as the user gave it. */
export function toolMessage(name, text) {
  const root = article("tool", `Result of ${name}`);
  root.append(make("p", "role", `Result of ${name}`), make("pre", "", text));
  return root;
}

/** What the model says, as it comes. */
export class Answer {
  /** `answered(results)` is called with one text per call once the user gives their results. */
  constructor(answered) {
    this.root = article("assistant", "Answer");
    this.root.setAttribute("aria-busy", "true");
    this.note = make("p", "progress", "Waiting for the model");
    this.root.append(this.note);
    this.reasoning = "";
    this.content = "";
    this.calls = [];
    this.answered = answered;
    this.frame = 0;
  }

  /** How far the prompt is. */
  progress({ total, cache, processed }) {
    const known = cache ? `, ${count(cache)} known` : "";
    this.note.textContent = `Reading the prompt: ${count(processed)} of ${count(total)} tokens${known}`;
  }

  /** One delta of the stream. */
  add(delta) {
    const reasoning = delta.reasoning_content ?? delta.reasoning;
    if (reasoning) this.reasoning += reasoning;
    if (delta.content) this.content += delta.content;
    for (const part of delta.tool_calls ?? []) this.addCall(part);
    if (reasoning || delta.content || delta.tool_calls) this.note.remove();
    // One look at everything new per frame of the screen, however fast tokens come.
    this.frame ||= requestAnimationFrame(() => this.draw());
  }

  addCall({ index, id, function: said }) {
    if (!this.calls[index]) {
      const root = make("section", "call");
      const title = make("h3", "", "Calls ");
      title.append(make("code", "", said.name ?? ""));
      const args = make("pre", "arguments");
      args.tabIndex = 0;
      root.append(title, args);
      this.root.append(root);
      this.calls[index] = { id, name: said.name ?? "", arguments: "", root, args };
    }
    this.calls[index].arguments += said.arguments ?? "";
  }

  draw() {
    this.frame = 0;
    if (this.reasoning) {
      if (!this.thought) {
        this.thought = make("details", "reasoning");
        this.thought.open = true;
        this.thought.append(make("summary", "", "Thinking"), make("div", "thought"));
        this.root.prepend(this.thought);
      }
      this.thought.lastChild.textContent = this.reasoning;
      const went = this.content || this.calls.length;
      if (went && !this.folded) {
        this.folded = true;
        this.thought.open = false;
        this.thought.firstChild.textContent = "Thought";
      }
    }
    if (this.content) {
      if (!this.text) {
        this.text = make("div", "text");
        if (this.thought) this.thought.after(this.text);
        else this.root.prepend(this.text);
      }
      show(this.text, this.content);
    }
    for (const call of this.calls.filter(Boolean)) call.args.textContent = call.arguments;
    this.drawn?.();
  }

  /** The answer is over: `line` says what it took, `notes` what else there is to know. */
  end(line, notes) {
    cancelAnimationFrame(this.frame);
    this.draw();
    this.note.remove();
    this.root.removeAttribute("aria-busy");
    for (const note of notes) this.root.append(make("p", "note", note));
    if (line) this.root.append(make("p", "usage", line));
  }

  /** The answer failed; `again` asks once more. */
  fail(message, again) {
    this.end("", []);
    const box = make("div", "failure");
    box.setAttribute("role", "alert");
    const retry = make("button", "", "Try again");
    retry.type = "button";
    retry.addEventListener("click", again);
    box.append(make("p", "", message), retry);
    this.root.append(box);
  }

  /** Asks the user for the calls' results. */
  askResults() {
    const form = make("form", "results");
    const fields = this.calls.map((call) => {
      call.args.textContent = pretty(call.arguments);
      const label = make("label", "", `Result of ${call.name}`);
      const field = make("textarea");
      field.rows = 2;
      label.append(field);
      form.append(label);
      return field;
    });
    const send = make("button", "", this.calls.length === 1 ? "Send result" : "Send results");
    send.type = "submit";
    form.append(send);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      form.remove();
      this.answered(fields.map((field) => field.value));
    });
    this.form = form;
    this.root.append(form);
  }

  /** The message as the API takes it back; none if nothing was said. */
  message() {
    const calls = this.calls.filter((call) => call && isJson(call.arguments));
    if (!this.content && !this.reasoning && !calls.length) return null;
    const message = { role: "assistant", content: this.content };
    if (this.reasoning) message.reasoning_content = this.reasoning;
    if (calls.length) {
      message.tool_calls = calls.map((call) => ({
        id: call.id,
        type: "function",
        function: { name: call.name, arguments: call.arguments },
      }));
    }
    return message;
  }
}

export function count(number) {
  return number.toLocaleString("en");
}

export function make(name, kind = "", text = "") {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (text) made.textContent = text;
  return made;
}

function article(kind, label) {
  const root = make("article", kind);
  root.setAttribute("aria-label", label);
  return root;
}

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

function pretty(text) {
  return isJson(text) ? JSON.stringify(JSON.parse(text), null, 2) : text;
}
