// The reference: every operation of the OpenAPI document, with its parameters, the fields of its body, and its answers.

import { send } from "./api.js";
import { element } from "./elements.js";

const { body: api } = await send("/openapi.json");
const resolved = (schema) => (schema?.$ref ? api.components.schemas[schema.$ref.split("/").at(-1)] : schema) ?? {};
const cell = (text) => element("td", {}, text ?? "");

function typeOf(schema) {
  if (schema?.$ref) return schema.$ref.split("/").at(-1);
  if (schema?.enum) return schema.enum.join(", ");
  const several = schema?.anyOf ?? schema?.oneOf;
  if (several) return several.map(typeOf).join(" or ");
  return schema?.type === "array" ? `list of ${typeOf(schema.items)}` : schema?.const ?? schema?.type ?? "anything";
}

function table(caption, heads, rows) {
  const head = element("tr", {}, ...heads.map((text) => element("th", { scope: "col" }, text)));
  const made = element("table", {}, element("caption", {}, caption), element("thead", {}, head), element("tbody", {}, ...rows));
  return rows.length ? element("div", { className: "scroll", tabIndex: 0 }, made) : "";
}

function parameters(operation) {
  const rows = (operation.parameters ?? []).map(({ name, in: place, required, schema, description }) =>
    element("tr", {}, cell(name), cell(place), cell(typeOf(schema)), cell(required ? "yes" : "no"), cell(description ?? schema?.description)));
  return table("Parameters", ["name", "in", "type", "needed", "what it is"], rows);
}

function fields(caption, schema) {
  const { properties = {}, required = [] } = resolved(schema);
  const rows = Object.entries(properties).map(([name, one]) =>
    element("tr", {}, cell(name), cell(typeOf(one)), cell(required.includes(name) ? "yes" : "no"), cell(one.description ?? resolved(one).description)));
  return table(caption, ["field", "type", "always", "what it is"], rows);
}

function answers(operation) {
  const shown = ({ content = {} }) => Object.values(content).map(({ schema }) => typeOf(schema)).join(" or ");
  const rows = Object.entries(operation.responses).map(([status, answer]) =>
    element("tr", {}, cell(status), cell(answer.description), cell(shown(answer)), cell(Object.keys(answer.headers ?? {}).join(", "))));
  return table("Answers", ["status", "when", "body", "headers"], rows);
}

function secret(operation) {
  const names = (operation.security ?? []).flatMap(Object.keys).map((name) => api.components.securitySchemes[name]);
  return names.map((scheme) => (scheme.name ? `the header ${scheme.name}` : `a bearer token: ${scheme.description}`)).join(" or ");
}

function shown(method, path, operation) {
  const body = operation.requestBody?.content?.["application/json"]?.schema;
  const good = Object.entries(operation.responses).find(([status]) => status.startsWith("2"))?.[1].content?.["application/json"]?.schema;
  const needs = secret(operation);
  return element("details", { className: "operation" },
    element("summary", {}, element("code", {}, `${method.toUpperCase()} ${path}`)),
    element("p", {}, operation.description ?? operation.summary ?? ""), needs ? element("p", { className: "hint" }, `Needs ${needs}.`) : "",
    parameters(operation), fields("Fields of the body", body), fields("Fields of the answer", good), answers(operation));
}

const groups = {};
for (const [path, operations] of Object.entries(api.paths)) {
  for (const [method, operation] of Object.entries(operations)) (groups[operation.tags?.[0] ?? "others"] ??= []).push(shown(method, path, operation));
}
const sections = Object.entries(groups).map(([name, made]) => element("section", {}, element("h2", {}, name), ...made));
document.querySelector("#version").textContent = api.info.version;
document.querySelector("#about").textContent = api.info.description;
document.querySelector("#reference").append(...sections);
document.documentElement.dataset.ready = "yes";
