// The page of the API: operations of openapi.json with their parameters, a curl line, and a form that sends a request.

const api = await (await fetch("/openapi.json")).json();
const server = { models: [], fewShotModels: [], classifiers: [] };
const lists = []; // functions that fill the lists of the forms
await readServer();
document.getElementById("description").textContent = api.info.description.replaceAll("`", "");

/** An element with text or children. */
function element(name, properties = {}, ...children) {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
}

/** Read what the server has, and fill the lists of the forms with it. A list that cannot be read stays as it is. */
async function readServer() {
  const [models, classifiers] = await Promise.all(["/api/models", "/api/classifiers"].map(read));
  server.models = models.models ?? server.models;
  server.fewShotModels = models.few_shot_models ?? server.fewShotModels;
  server.classifiers = classifiers.classifiers ?? server.classifiers;
  for (const fill of lists) fill();
}

/** The answer of an address, or an empty one if there is none. */
async function read(path) {
  try {
    const response = await fetch(path);
    return response.ok ? await response.json() : {};
  } catch {
    return {};
  }
}

/** The schema that a reference names. */
function resolve(schema) {
  const name = schema?.$ref?.split("/").pop();
  return name ? api.components.schemas[name] : (schema ?? {});
}

/** The name of a schema's type. */
function typeName(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  const variants = schema.anyOf ?? schema.oneOf;
  if (variants) return variants.map(typeName).filter((name) => name !== "null").join(" or ");
  if (schema.enum) return schema.enum.join(" or ");
  if (schema.type === "array") return `list of ${typeName(schema.items ?? {})}`;
  if (isFile(schema)) return "file";
  return schema.type ?? "any";
}

function isFile(schema) {
  return schema.format === "binary" || schema.contentMediaType !== undefined;
}

/** An example value of a schema. */
function example(schema) {
  const found = resolve(schema);
  if (found.default !== undefined) return found.default;
  const variants = found.anyOf ?? found.oneOf;
  if (variants) return example(variants[0]);
  if (found.enum) return found.enum[0];
  if (found.type === "object") {
    const required = new Set(found.required ?? []);
    const entries = Object.entries(found.properties ?? {}).filter(([name]) => required.has(name));
    return Object.fromEntries(entries.map(([name, value]) => [name, example(value)]));
  }
  return { array: () => [example(found.items ?? {})], integer: () => 1, number: () => 1, boolean: () => false }[
    found.type
  ]?.() ?? "text";
}

function fields(schema) {
  const found = resolve(schema);
  const required = new Set(found.required ?? []);
  return Object.entries(found.properties ?? {}).map(([name, value]) => ({
    name,
    schema: value,
    required: required.has(name),
    isFile: isFile(value) || isFile(value.items ?? {}),
  }));
}

function table(rows) {
  const head = element("tr", {}, ...["name", "type", "about"].map((text) => element("th", { textContent: text, scope: "col" })));
  const body = rows.map(({ name, schema, required }) => {
    const about = [required ? "required" : "", resolve(schema).description ?? schema.description ?? ""];
    const cells = [name, typeName(schema), about.filter(Boolean).join(". ")];
    return element("tr", {}, ...cells.map((text) => element("td", { textContent: text })));
  });
  return element("table", {}, head, ...body);
}

/** A command line that sends the request. */
function curlLine(method, path, kind, content) {
  const parts = ["curl", ...(method === "GET" ? [] : ["-X", method]), `${location.origin}${path}`];
  if (kind === "application/json") {
    parts.push("-H 'content-type: application/json'", `-d '${JSON.stringify(example(content.schema))}'`);
  } else if (kind) {
    const wanted = fields(content.schema).filter((field) => field.required);
    parts.push(...wanted.map((field) => `-F ${field.name}=${field.isFile ? "@FILE" : "VALUE"}`));
  }
  return parts.join(" ");
}

/** The values that the server has for a field, as [value, text]; null if it has no list of them. */
function choices(name, path, schema) {
  if (name === "name" && path.startsWith("/api/models/")) {
    const kind = path.endsWith("-image") ? "image" : "text";
    return server.models.filter(({ input }) => input === kind).map((model) => [model.name, model.name]);
  }
  if (name === "identifier") return server.classifiers.map((found) => [found.id, `${found.name} (${found.id})`]);
  if (name === "model") return server.fewShotModels.filter(({ available }) => available).map((model) => [model.name, model.name]);
  const found = [schema, ...(schema.anyOf ?? [])].map(resolve).find((variant) => variant.enum);
  return found ? found.enum.map((value) => [value, value]) : null;
}

/** A field of a form: a list of the values that the server has, a file, or text. */
function input(field, prefix, path) {
  const properties = { name: `${prefix}${field.name}`, required: field.required, ariaLabel: field.name };
  if (choices(field.name, path, field.schema)) {
    const box = element("select", properties);
    const fill = () => {
      const found = choices(field.name, path, field.schema);
      const rows = [...(field.required && found.length ? [] : [["", field.required ? "none yet" : ""]]), ...found];
      const { value } = box;
      box.replaceChildren(...rows.map(([name, text]) => element("option", { value: name, textContent: text })));
      if (rows.some(([name]) => name === value)) box.value = value;
    };
    lists.push(fill);
    fill();
    return element("label", {}, field.name, box);
  }
  const box = element("input", properties);
  if (field.isFile) Object.assign(box, { type: "file", multiple: field.schema.type === "array" });
  return element("label", {}, field.name, box);
}

/** A form that sends the operation to this server. */
function requestForm(method, path, parameters, kind, content) {
  const form = element("form");
  form.append(...parameters.map((parameter) => input(parameter, "parameter-", path)));
  if (kind === "application/json") {
    const text = JSON.stringify(example(content.schema), null, 2);
    form.append(element("label", {}, "body", element("textarea", { name: "body", value: text })));
  } else if (kind) {
    form.append(...fields(content.schema).map((field) => input(field, "field-", path)));
  }
  const output = element("pre", { hidden: true, tabIndex: 0 });
  output.setAttribute("aria-live", "polite");
  form.append(element("button", { textContent: "Send" }), output);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    output.hidden = false;
    output.textContent = await send(form, method, path, parameters, kind, content);
    if (method !== "GET") await readServer();
  });
  return form;
}

/** The path with the values of a form; without one, the name of the value in capital letters. */
function filledPath(form, path, parameters) {
  for (const { name } of parameters.filter((parameter) => parameter.in === "path"))
    path = path.replace(`{${name}}`, encodeURIComponent(form.elements[`parameter-${name}`].value || name.toUpperCase()));
  return path;
}

async function send(form, method, path, parameters, kind, content) {
  const query = new URLSearchParams();
  for (const { name, in: place } of parameters) {
    const { value } = form.elements[`parameter-${name}`];
    if (place !== "path" && value) query.set(name, value);
  }
  path = filledPath(form, path, parameters);
  const options = { method };
  if (kind === "application/json") {
    Object.assign(options, { body: form.elements.body.value, headers: { "content-type": kind } });
  } else if (kind) {
    options.body = new FormData();
    for (const { name } of fields(content.schema)) {
      const box = form.elements[`field-${name}`];
      const values = box.files ? [...box.files] : [box.value].filter(Boolean);
      for (const value of values) options.body.append(name, value);
    }
  }
  const address = query.size ? `${path}?${query}` : path;
  try {
    const response = await fetch(address, options);
    const type = response.headers.get("content-type") ?? "";
    const text = type.includes("json") ? JSON.stringify(await response.json(), null, 2) : `${type}, ${(await response.blob()).size} bytes`;
    return `${response.status}\n${text}`;
  } catch (error) {
    return String(error);
  }
}

function operation(method, path, details) {
  const [kind, content] = Object.entries(details.requestBody?.content ?? {})[0] ?? [];
  const parameters = details.parameters ?? [];
  const body = element("div", { className: "body" });
  const rows = [...parameters, ...(content ? fields(content.schema) : [])];
  if (rows.length) body.append(element("h4", { textContent: "Values" }), table(rows));
  const [line, form] = [element("pre", {}), requestForm(method, path, parameters, kind, content)];
  const fill = () => (line.textContent = curlLine(method, filledPath(form, path, parameters), kind, content));
  form.addEventListener("input", fill);
  lists.push(fill);
  fill();
  body.append(element("h4", { textContent: "Command line" }), line, element("h4", { textContent: "Try it" }), form);
  const text = details.description ?? details.summary;
  const summary = element(
    "summary",
    {},
    element("span", { className: "method", textContent: method }),
    element("span", { className: "path", textContent: path }),
    element("span", { className: "summary", textContent: text }),
  );
  return element("details", {}, summary, body);
}

const main = document.getElementById("operations");
main.replaceChildren();
const sections = new Map();
for (const [path, methods] of Object.entries(api.paths)) {
  for (const [method, details] of Object.entries(methods)) {
    const tag = details.tags?.[0] ?? "other";
    if (!sections.has(tag)) sections.set(tag, element("section", {}, element("h2", { textContent: tag })));
    sections.get(tag).append(operation(method.toUpperCase(), path, details));
  }
}
main.append(...sections.values());
