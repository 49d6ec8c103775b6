"use strict";
// Renders /v2/openapi.json. All text goes into the page as text nodes.

const el = (tag, attributes, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) node.setAttribute(name, value);
  node.append(...children.filter((child) => child != null));
  return node;
};

const resolve = (spec, schema) => {
  for (let hops = 0; schema?.$ref && hops < 10; hops++) {
    schema = spec.components.schemas[schema.$ref.split("/").pop()];
  }
  return schema ?? {};
};

const typeOf = (spec, schema) => {
  if (schema?.$ref) return schema.$ref.split("/").pop();
  const type = [schema?.type].flat().filter((t) => t && t !== "null").join(" or ") || "any";
  if (type === "array") return typeOf(spec, schema.items) + "[]";
  if (type === "object" && typeof schema.additionalProperties === "object") return "map of " + typeOf(spec, schema.additionalProperties);
  return schema.enum ? schema.enum.map((v) => JSON.stringify(v)).join(" | ") : schema.format ? `${type} (${schema.format})` : type;
};

const bounds = (schema) => [
  schema.default !== undefined && `default ${JSON.stringify(schema.default)}`,
  schema.minimum !== undefined && `at least ${schema.minimum}`,
  schema.maximum !== undefined && `at most ${schema.maximum}`,
  schema.maxLength !== undefined && `at most ${schema.maxLength} characters`,
].filter(Boolean).join(", ");

const row = (spec, name, schema, required, nested) => el("tr",
  { class: [nested && "nested", schema["x-skerry-unsupported"] && "unsupported"].filter(Boolean).join(" ") },
  el("td", {}, el("code", {}, name), required ? el("span", { class: "required", title: "required" }, " *") : null),
  el("td", { class: "type" }, typeOf(spec, schema)),
  el("td", {}, [schema.description, bounds(schema)].filter(Boolean).join(" — ")));

const fields = (spec, schema, nested = false, depth = 0) => {
  const object = resolve(spec, schema);
  return Object.entries(object.properties ?? {}).flatMap(([name, property]) => {
    const label = nested ? `${nested}.${name}` : name;
    const inner = resolve(spec, property.type === "array" ? property.items : property);
    return [
      row(spec, label, { ...property, description: property.description ?? inner.description }, object.required?.includes(name), !!nested),
      ...(inner.properties && depth < 1 ? fields(spec, inner, label + (property.type === "array" ? "[]" : ""), depth + 1) : []),
    ];
  });
};

const table = (rows) => rows.length ? el("table", {}, el("tbody", {}, ...rows)) : null;

const body = (spec, title, content) => Object.entries(content ?? {}).flatMap(([media, { schema }]) => {
  const object = resolve(spec, schema?.type === "array" ? schema.items : schema);
  return [
    el("h4", {}, title, " ", el("code", {}, media), schema?.$ref || schema?.type === "array" ? " " + typeOf(spec, schema) : ""),
    table(fields(spec, object)),
  ];
});

const example = (method, path, operation) => {
  const query = (operation.parameters ?? []).some((p) => p.in === "query" && p.required) ? "?…" : "";
  const json = operation.requestBody?.content?.["application/json"] ? " \\\n  --json '{…}'" : operation.requestBody ? " \\\n  --data-binary @FILE" : "";
  const verb = method === "get" || json ? "" : ` -X ${method.toUpperCase()}`;
  return `curl -H "Authorization: Bearer $SKERRY_API_KEY"${verb} ${location.origin}${path}${query}${json}`;
};

const section = (spec, path, method, operation) => {
  const parameters = (operation.parameters ?? []).map((p) => row(spec, `${p.name} (${p.in})`, { ...p.schema, description: p.description ?? p.schema?.description }, p.required));
  return el("section", { class: "op", id: operation.operationId },
    el("h3", {}, el("span", { class: `method ${method}` }, method.toUpperCase()), el("code", {}, path), el("span", { class: "summary" }, operation.summary ?? "")),
    el("div", {},
      operation.description ? el("p", {}, operation.description) : null,
      el("pre", {}, example(method, path, operation)),
      parameters.length ? el("h4", {}, "Parameters") : null, table(parameters),
      ...body(spec, "Request body", operation.requestBody?.content),
      ...Object.entries(operation.responses ?? {}).flatMap(([status, response]) =>
        status === "default" ? [el("h4", {}, "Errors: Problem, see below")] : [
          ...(response.content ? body(spec, `Response ${status}`, response.content) : [el("h4", {}, `Response ${status}`)])])));
};

const render = (spec) => {
  document.getElementById("title").textContent = `${spec.info.title} ${spec.info.version}`;
  document.getElementById("summary").replaceChildren(spec.info.description ?? "", " The document: ", el("a", { href: "/v2/openapi.json" }, "/v2/openapi.json"));
  const groups = new Map((spec.tags ?? []).map((tag) => [tag.name, []]));
  for (const [path, item] of Object.entries(spec.paths)) {
    for (const [method, operation] of Object.entries(item)) {
      const tag = operation.tags?.[0] ?? "Other";
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push({ path, method, operation });
    }
  }
  const nav = document.getElementById("nav"), main = document.getElementById("main");
  main.replaceChildren();
  for (const [tag, operations] of groups) {
    nav.append(el("h2", {}, tag));
    main.append(el("h2", {}, tag));
    for (const { path, method, operation } of operations) {
      nav.append(el("a", { href: "#" + operation.operationId }, operation.summary ?? path));
      main.append(section(spec, path, method, operation));
    }
  }
  nav.append(el("h2", {}, "Errors"), el("a", { href: "#problem" }, "Problem"));
  main.append(el("h2", {}, "Errors"), el("section", { class: "op", id: "problem" }, el("h3", {}, el("code", {}, "application/problem+json"), el("span", { class: "summary" }, "RFC 9457")),
    el("div", {}, table(fields(spec, spec.components.schemas.Problem)))));
};

fetch("/v2/openapi.json")
  .then((response) => response.ok ? response.json() : Promise.reject(new Error(response.statusText)))
  .then(render)
  .catch((error) => { document.getElementById("summary").textContent = `Cannot load /v2/openapi.json: ${error.message}`; });
