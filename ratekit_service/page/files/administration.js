// Administration: tenants, plans, keys, overrides, and who is limited now. The token lives in a variable only.

import { send, sentence } from "./api.js";
import { algorithms } from "./algorithms.js";
import { offerPlans, useKey } from "./bursts.js";
import { choice, contains, element, field, finder, showFinder } from "./elements.js";
import { List, panel } from "./lists.js";

const REFRESH_MILLISECONDS = 2000;
const RECENT_SECONDS = 60;
const form = document.querySelector("#token-form");
const place = document.querySelector("#console");
const status = document.querySelector("#administration-status");
const problem = document.querySelector("#administration-problem");
const closing = document.querySelector("#close");
const state = { token: "", tenant: "", tenants: [], plans: [], lists: {}, finders: {}, timer: undefined, seen: undefined };

export function openAdministration(settings) {
  if (!settings.administration) status.textContent = "Administration is off: the service was started without RATEKIT_ADMIN_TOKEN.";
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    state.token = form.elements.token.value;
    form.elements.token.value = "";
    await open();
  });
  closing.addEventListener("click", close);
}

// Ask as an administrator.
async function call(method, path, body) {
  const headers = { authorization: `Bearer ${state.token}`, "x-ratekit-actor": "page" };
  try {
    return await send(`/v1/admin${path}`, { method, headers, body });
  } catch {
    return { ok: false, status: 0, body: { detail: "the service does not answer" } };
  }
}

// Return the body of an answer; undefined if it was refused, and the page says why.
async function ask(method, path, body) {
  const answer = await call(method, path, body);
  problem.textContent = answer.ok ? "" : sentence(answer);
  problem.dataset.stale = "";
  return answer.ok ? (answer.body ?? {}) : undefined;
}

async function open() {
  const tenants = await ask("GET", "/tenants?limit=200");
  if (tenants === undefined) return close();
  build();
  setOpen(true);
  showTenants(tenants);
  await refresh();
  clearInterval(state.timer);
  state.timer = setInterval(refreshLimited, REFRESH_MILLISECONDS);
  say("Administration is open.");
}

function close() {
  clearInterval(state.timer);
  Object.assign(state, { token: "", tenant: "", tenants: [], plans: [] });
  place.replaceChildren();
  setOpen(false);
  say("");
}

function setOpen(isOpen) {
  place.hidden = closing.hidden = !isOpen;
  for (const selector of [".fields", "[type=submit]"]) form.querySelector(selector).hidden = isOpen;
}

function say(text) {
  status.textContent = text;
}

const ofTenant = (path, more = "") => `${path}?tenant_id=${encodeURIComponent(state.tenant)}&limit=50${more}`;

function build() {
  const read = (path) => ask("GET", path);
  state.lists = {
    tenants: new List("Tenants", ["Name", "Id", "Mode", "Default plan"], tenantRow, read),
    plans: new List("Plans", ["Name", "Limits", "Mode", "Id", "Change"], planRow, read),
    keys: new List("Keys", ["Name", "Id", "Plan", "Last used", "State"], keyRow, read),
    overrides: new List("Overrides", ["Subject", "Resource", "Numbers", "Until", "Reason", "End"], overrideRow, read),
    limited: new List("Limited now", ["Subject", "Resource", "Limit", "Refused in the last minute", "Last"], (row) => row, read),
  };
  state.finders = { tenants: finder("Find tenants by a part of their name", findTenants), plans: finder("Find plans by a part of their name", findPlans) };
  const { tenants, plans, keys, overrides, limited } = state.lists;
  const secret = element("div", { id: "secret", hidden: true });
  place.replaceChildren(
    panel("Tenants", state.finders.tenants, tenantChoice(), tenantForm(), tenants.root),
    panel("Limited now", limited.root),
    panel("Keys", state.finders.plans, keyForm(), secret, keys.root),
    panel("Overrides", overrideForm(), overrides.root),
    panel("Plans", planForm(), plans.root),
  );
}

async function findTenants() {
  const { tenant } = state;
  const found = await ask("GET", `/tenants?limit=200${contains(state.finders.tenants)}`);
  if (found === undefined) return;
  showTenants(found);
  if (state.tenant !== tenant) await refresh();
}

function showTenants({ items: tenants, next }) {
  Object.assign(state, { tenants, moreTenants: next });
  showFinder(state.finders.tenants, next);
  const select = place.querySelector("[name=tenant]");
  select.replaceChildren(...byName(tenants));
  if (tenants.some((tenant) => tenant.id === state.tenant)) select.value = state.tenant;
  state.tenant = select.value;
}

const byName = (items) => items.toSorted((one, other) => one.name.localeCompare(other.name)).map((item) => new Option(item.name, item.id));

// Read the plans of the tenant that are found. Returns whether they are still those of the tenant that is shown.
async function findPlans() {
  const { tenant } = state;
  const found = await ask("GET", `/plans?tenant_id=${encodeURIComponent(tenant)}&limit=200${contains(state.finders.plans)}`);
  if (state.tenant !== tenant) return false; // another one was chosen meanwhile
  state.plans = found?.items ?? [];
  showFinder(state.finders.plans, found?.next);
  place.querySelector("[name=plan_id]").replaceChildren(new Option("the tenant's default", ""), ...byName(state.plans));
  await state.lists.plans.load(ofTenant("/plans", contains(state.finders.plans)));
  return true;
}

async function refresh() {
  await state.lists.tenants.load(`/tenants?limit=50${contains(state.finders.tenants)}`);
  if (!state.tenant || !(await findPlans())) return;
  await Promise.all(["keys", "overrides"].map((name) => state.lists[name].load(ofTenant(`/${name}`))));
  await refreshLimited();
}

// Violations of the last minute, one line for each subject, resource and limit. A failure to read leaves the last ones,
// and the page says from when they are.
async function refreshLimited() {
  const { tenant } = state;
  if (!tenant || document.hidden) return;
  const since = new Date(Date.now() - RECENT_SECONDS * 1000).toISOString();
  const answer = await call("GET", `/violations?tenant_id=${encodeURIComponent(tenant)}&limit=200&since=${encodeURIComponent(since)}`);
  if (state.tenant !== tenant) return;
  if (!answer.ok) return sayStale(answer);
  if (problem.dataset.stale) problem.textContent = problem.dataset.stale = "";
  state.seen = new Date();
  const groups = new Map();
  for (const one of answer.body.items) {
    const id = JSON.stringify([one.client_key, one.endpoint, one.limit_name]);
    const group = groups.get(id) ?? [one.client_key, one.endpoint, `${one.limit_name ?? ""} (${one.limit_value})`, 0, time(one.violated_at)];
    group[3] += 1;
    groups.set(id, group);
  }
  state.lists.limited.show([...groups.values()].map((row) => row.map(String)), answer.body.next === null ? "" : "More than 200 were refused: these are the last ones.");
}

function sayStale(answer) {
  if (answer.status === 401) {
    close(); // the service was started with another token
    problem.textContent = sentence(answer);
    return;
  }
  const text = `Not up to date: ${sentence(answer)}. Shown is what there was at ${(state.seen ?? new Date()).toLocaleTimeString()}.`;
  if (problem.textContent !== text) problem.textContent = text; // it is read out when it changes
  problem.dataset.stale = "yes";
}

const time = (text) => (text ? new Date(text).toLocaleString() : "");
const planName = (id) => (id ? (state.plans.find((plan) => plan.id === id)?.name ?? id) : "");

function tenantRow(tenant) {
  return [tenant.name, tenant.id, tenant.mode, planName(tenant.default_plan_id)];
}

function keyRow(key) {
  const label = `Revoke key ${key.name}`;
  const button = element("button", { type: "button", ariaLabel: label, onclick: () => revoke(key) }, "Revoke");
  return [key.name, key.id, planName(key.plan_id) || "default", time(key.last_used_at), key.revoked_at ? `revoked ${time(key.revoked_at)}` : button];
}

function overrideRow(one) {
  const shown = (numbers) => [numbers.unlimited && "unlimited", numbers.max_requests !== null && `${numbers.max_requests} requests`, numbers.expiry !== null && `in ${numbers.expiry} s`, numbers.burst !== null && `burst ${numbers.burst}`].filter(Boolean).join(" ");
  const texts = [shown(one), ...Object.entries(one.limits).map(([name, numbers]) => `${name}: ${shown(numbers)}`)].filter(Boolean);
  const label = `End the override of ${one.subject} on ${one.resource}`;
  const button = element("button", { type: "button", ariaLabel: label, onclick: () => endOverride(one) }, "End");
  return [one.subject, one.resource, texts.join("; "), time(one.valid_until) || "ended by hand", one.reason ?? "", button];
}

async function revoke(key) {
  if (!confirm(`Revoke the key ${key.name} (${key.id})? Requests with it are refused within a second.`)) return;
  if ((await ask("DELETE", `/keys/${encodeURIComponent(key.id)}`)) === undefined) return;
  await refresh();
  say(`Key ${key.name} is revoked.`);
}

async function endOverride(one) {
  if ((await ask("DELETE", `/overrides/${one.override_id}`)) === undefined) return;
  await refresh();
  say(`The override of ${one.subject} on ${one.resource} is ended.`);
}

function tenantChoice() {
  const label = choice("Tenant", "tenant", []);
  label.firstElementChild.addEventListener("change", async (event) => {
    state.tenant = event.target.value;
    state.finders.plans.lastElementChild.value = "";
    place.querySelector("#secret").hidden = true;
    place.querySelector("#plan-change").replaceChildren();
    await refresh();
  });
  return element("div", { className: "fields" }, label);
}

// A form whose work is done with its values; empty fields are left out.
function formOf(title, fields, work) {
  const made = element("form", {}, element("div", { className: "fields" }, ...fields), element("div", { className: "buttons" }, element("button", { type: "submit" }, title)));
  made.addEventListener("submit", async (event) => {
    event.preventDefault();
    const inputs = [...made.querySelectorAll("input, select")].filter((input) => input.value !== "");
    const values = Object.fromEntries(inputs.map((input) => [input.name, input.type === "number" ? input.valueAsNumber : input.value]));
    await work(values, made);
  });
  return made;
}

function tenantForm() {
  return formOf("Create tenant", [field("Name of a new tenant", "name", { required: true, maxLength: 256 })], async (values, made) => {
    const tenant = await ask("POST", "/tenants", values);
    if (tenant === undefined) return;
    made.reset();
    state.tenant = tenant.id;
    showTenants({ items: [...state.tenants, tenant], next: state.moreTenants });
    await refresh();
    say(`Tenant ${tenant.name} is there. Give it a plan and a key.`);
  });
}

function keyForm() {
  const fields = [field("Name of a new key", "name", { required: true, maxLength: 256 }), choice("Plan", "plan_id", [])];
  return formOf("Create key", fields, async (values, made) => {
    const key = await ask("POST", "/keys", { tenant_id: state.tenant, ...values });
    if (key === undefined) return;
    made.reset();
    showSecret(key);
    await refresh();
    say(`Key ${key.name} is there. Its secret is shown once.`);
  });
}

function showSecret(key) {
  const use = element("button", { type: "button", onclick: () => useKey(key.key) }, "Use it for bursts");
  const secret = place.querySelector("#secret");
  secret.replaceChildren(element("p", { className: "secret" }, "Keep it now, it is not shown again: ", element("code", { id: "secret-key" }, key.key)), use);
  secret.hidden = false;
}

function overrideForm() {
  const fields = [
    field("Subject", "subject", { required: true, maxLength: 256, value: "user:42" }),
    field("Resource", "resource", { required: true, maxLength: 256, value: "GET:/orders" }),
    field("Maximum (0 blocks)", "max_requests", { type: "number", min: 0, step: 1 }),
    field("Capacity of a bucket", "burst", { type: "number", min: 1, step: 1 }),
    field("Ends after seconds", "ttl", { type: "number", min: 1, step: "any", value: 600 }),
    field("Reason", "reason", { maxLength: 200 }),
  ];
  const hint = element("p", { className: "hint" }, "Of a token bucket, the maximum is what comes back in each window; what it holds is its capacity. Empty fields stay as the plan has them.");
  const form = formOf("Set override", fields, async (values) => {
    const made = await ask("PUT", "/overrides", { tenant_id: state.tenant, ...values });
    if (made === undefined) return;
    await refresh();
    say(`The override of ${made.subject} on ${made.resource} is ${made.in_force ? "in force" : "written; the store gets it when it answers"}.`);
  });
  form.firstElementChild.after(hint);
  return form;
}

// The numbers of an algorithm as fields, with the values that are given.
function numberFields(algorithm, values = {}) {
  return algorithms[algorithm].numbers.map(({ label, name, max, value, ...rest }) => field(label, name, { type: "number", required: true, ...rest, step: "any", value: values[name] ?? value }));
}

function planRow(plan) {
  const numbers = algorithms[plan.algorithm]?.numbers ?? [];
  const hasNumbers = numbers.length > 0 && numbers.every(({ name }) => plan[name] !== null && plan[name] !== undefined);
  const button = element("button", { type: "button", ariaLabel: `Change plan ${plan.name}`, onclick: () => changePlan(plan) }, "Change");
  const limits = hasNumbers ? `${algorithms[plan.algorithm].title}: ${algorithms[plan.algorithm].shown(plan)}` : plan.limits.join(", ");
  return [plan.name, limits, plan.mode, plan.id, hasNumbers ? button : "by the API"];
}

function planForm() {
  const names = choice("Algorithm", "algorithm", Object.entries(algorithms).map(([name, { title }]) => [name, title]));
  const numbers = element("div", { className: "fields" });
  const show = () => numbers.replaceChildren(...numberFields(names.firstElementChild.value));
  names.firstElementChild.addEventListener("change", show);
  show();
  const made = formOf("Create plan", [field("Name of a new plan", "name", { required: true, maxLength: 256 }), names], async (values) => {
    const plan = await ask("POST", "/plans", { tenant_id: state.tenant, ...values });
    if (plan !== undefined) await sayPlan(plan, "there");
  });
  made.firstElementChild.after(numbers);
  return element("div", {}, made, element("div", { id: "plan-change" }));
}

// Show a form with the numbers of a plan, which replaces them.
function changePlan(plan) {
  const place = document.querySelector("#plan-change");
  const form = formOf(`Change ${plan.name}`, numberFields(plan.algorithm, plan), async (values) => {
    const changed = await ask("PATCH", `/plans/${encodeURIComponent(plan.id)}`, { algorithm: plan.algorithm, ...values });
    if (changed === undefined) return;
    place.replaceChildren();
    await sayPlan(changed, "changed");
  });
  const cancel = element("button", { type: "button", onclick: () => place.replaceChildren() }, "Cancel");
  form.lastElementChild.append(cancel);
  place.replaceChildren(element("h4", {}, `Plan ${plan.name}`), form);
  form.querySelector("input").focus();
}

async function sayPlan(plan, what) {
  await Promise.all([refresh(), offerPlans()]);
  say(`Plan ${plan.name} is ${what}: ${plan.limits.join(", ")}.`);
}
