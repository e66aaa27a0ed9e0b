// The form of one question. It has no view: it moves into the element that the cell's output keeps for it, and leaves
// when the kernel ends, so that what is saved with the notebook is that element's own text.

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function radio(name, required, [key, text]) {
  const input = element("input", { type: "radio", name, value: key, required });
  return element("label", { className: "gpucourse-option" }, input, element("b", {}, key), element("span", {}, text));
}

function number(name, required, label, unit) {
  const input = element("input", { type: "text", name, inputMode: "decimal", autocomplete: "off", required });
  return element("label", { className: "gpucourse-number" }, `${label || "Your answer"} `, input, ` ${unit}`);
}

// A part of an answer, or all of it. Where there are several, one may be left blank.
function field(name, required, { label, unit, options }) {
  if (!options.length) return [number(name, required, label, unit)];
  const choices = options.map((option) => radio(name, required, option));
  if (!label) return choices;
  const group = element("div", { className: "gpucourse-part" }, element("span", {}, label), ...choices);
  group.setAttribute("role", "radiogroup");
  group.setAttribute("aria-label", label);
  return [group];
}

function build(model) {
  const { id, title, fields } = model.get("question");
  const names = fields.map((_, i) => `${model.get("place")}-${i}`);
  const reply = element("output");
  reply.setAttribute("aria-live", "polite");
  const say = (textContent, className) => Object.assign(reply, { textContent, className });
  const form = element(
    "form", { className: "gpucourse-form" },
    element("fieldset", {}, element("legend", {}, `${id}  ${title}`),
            ...fields.flatMap((one, i) => field(names[i], fields.length === 1, one)),
            element("button", { type: "submit" }, "Check"), reply),
  );
  // The notebook would take arrows, letters and Enter for its own shortcuts.
  form.addEventListener("keydown", (event) => event.stopPropagation());
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const given = new FormData(form);
    model.send({ answers: names.map((name) => given.get(name) ?? "") });
    say("waiting for the kernel", "gpucourse-waiting");
  });
  // The result stands below the form, where it is saved; here it is for screen readers.
  model.on("msg:custom", (message) => say(message.reply, "gpucourse-spoken"));
  return form;
}

function initialize({ model }) {
  const form = build(model);
  let text = [];
  const settle = () => {
    const place = document.getElementById(model.get("place"));
    if (place === null || place.contains(form)) return;
    text = [...place.childNodes];
    place.replaceChildren(form);
  };
  // The output is drawn before or after this runs, and again when the notebook is moved.
  const observer = new MutationObserver(settle);
  observer.observe(document.body, { childList: true, subtree: true });
  settle();
  const leave = () => {
    observer.disconnect();
    form.replaceWith(...text);
  };
  model.on("comm_live_update", leave); // the kernel has ended or restarted
  return leave;
}

export default { initialize };
