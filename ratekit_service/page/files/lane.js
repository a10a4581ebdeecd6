// One burst: the limit it is decided by, and what came of every request.

import { algorithms } from "./algorithms.js";
import { curlOf, send, sentence } from "./api.js";
import { Chart } from "./chart.js";
import { element, field } from "./elements.js";

const LOOK_MILLISECONDS = 300;
const LOOKS = 20;
const RELEASE_MILLISECONDS = 500;
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

// A plan that counts tokens is asked for so many tokens. Requests cost 1 beside other units.
function costByUnit(units, cost) {
  const others = units.filter((unit) => unit !== "requests");
  return others.length ? Object.fromEntries(others.map((unit) => [unit, cost])) : cost;
}

export class Lane {
  // title: "Burst A"; chosen: the algorithm or the name of the plan to begin with.
  constructor(title, resource, chosen) {
    this.root = document.querySelector("#lane-template").content.cloneNode(true).firstElementChild;
    this.find = (selector) => this.root.querySelector(selector);
    this.title = title;
    this.chosen = chosen;
    this.plans = [];
    this.find("h3").textContent = title;
    this.find("legend").textContent = `Limit of ${title}`;
    this.find(".send").textContent = `Send ${title} alone`;
    this.find("[name=resource]").value = resource;
    this.select = this.find("[name=limited_by]");
    this.select.addEventListener("change", () => this.showNumbers());
    this.chart = new Chart(this.find("svg"));
  }

  // Offer algorithms with own numbers, if this is the demo, and the plans that a key can use.
  offer(isDemo, plans) {
    const before = this.select.value;
    this.plans = plans;
    const own = Object.entries(algorithms).map(([name, { title }]) => new Option(title, name));
    const named = plans.map((plan) => new Option(`${plan.name} (${plan.limits.join(", ")})`, `plan:${plan.id}`));
    const groups = [isDemo && element("optgroup", { label: "Your numbers" }, ...own), named.length && element("optgroup", { label: "Plans of the key" }, ...named)];
    this.select.replaceChildren(...groups.filter(Boolean));
    const wanted = [before, this.chosen, `plan:${plans.find((plan) => plan.name === this.chosen)?.id}`];
    const values = [...this.select.options].map((option) => option.value);
    this.select.value = wanted.find((value) => values.includes(value)) ?? values[0] ?? "";
    if (this.select.value !== before || !before) this.showNumbers();
  }

  showNumbers() {
    const algorithm = algorithms[this.select.value];
    const inputs = (algorithm?.numbers ?? []).map(({ label, name, ...rest }) => field(label, name, { type: "number", required: true, ...rest }));
    this.find(".numbers").replaceChildren(...inputs);
    this.find(".hint").textContent = algorithm?.hint ?? "A plan as the service has it: overrides and policies apply.";
  }

  isValid() {
    return [...this.root.querySelectorAll("input, select")].every((input) => input.reportValidity());
  }

  // What is sent for one request: a path, and a body.
  request({ subject, cost }) {
    const body = { resource: this.find("[name=resource]").value, subject, cost };
    const chosen = this.select.value;
    const plan = this.plans.find(({ id }) => chosen === `plan:${id}`);
    if (plan) return { path: "/v1/", body: { ...body, cost: costByUnit(plan.units, cost), plan_id: plan.id } };
    const numbers = [...this.root.querySelectorAll(".numbers input")].map((input) => [input.name, input.valueAsNumber]);
    return { path: "/v1/demo/", body: { ...body, plan: { algorithm: chosen, ...Object.fromEntries(numbers) } } };
  }

  async burst(settings) {
    const run = { ...this.request(settings), headers: { "x-api-key": settings.key }, started: performance.now(), counts: { yes: 0, no: 0, other: 0 } };
    this.run = run;
    this.reset();
    const sent = [];
    for (let number = 1; number <= settings.requests && this.run === run; number += 1) {
      sent.push(this.check(run, number));
      await pause(settings.gap);
    }
    await Promise.all(sent);
    if (this.run !== run) return;
    const { yes, no, other } = run.counts;
    this.find(".finished").textContent = `${this.title} is over: ${yes} allowed, ${no} refused${other ? `, ${other} failed: ${run.failure}` : ""}.`;
    await this.watch(run);
  }

  reset() {
    this.chart.clear();
    this.find(".answers").replaceChildren();
    this.find(".finished").textContent = "";
    this.showCounts({ yes: 0, no: 0 });
  }

  async check(run, number) {
    const answer = await this.ask(run, "check");
    if (this.run !== run) return;
    const kind = typeof answer.body?.allowed !== "boolean" ? "other" : answer.body.allowed ? "yes" : "no";
    run.counts[kind] += 1;
    if (kind === "other") run.failure = sentence(answer);
    else this.plot(run, answer.body, kind === "yes" ? "passed" : "stopped");
    const mark = { yes: "✓", no: "✕", other: "!" }[kind];
    this.find(".answers").append(element("li", { className: kind, title: `request ${number}` }, `${mark} ${answer.status || "failed"}`));
    this.showCounts(run.counts);
    this.showLast(run, answer);
    if (answer.body?.slot && run.body.plan_id) this.release(run, answer.body.slot);
  }

  async ask(run, operation) {
    try {
      return await send(run.path + operation, { method: "POST", headers: run.headers, body: run.body });
    } catch {
      return { status: 0, headers: [], body: { detail: "the service does not answer" } };
    }
  }

  async release(run, slot) {
    await pause(RELEASE_MILLISECONDS);
    await send("/v1/release", { method: "POST", headers: run.headers, body: { slot } }).catch(() => {});
  }

  // Look at what remains while it comes back.
  async watch(run) {
    for (let looks = 0; looks < LOOKS; looks += 1) {
      await pause(LOOK_MILLISECONDS);
      if (this.run !== run) return;
      const { body } = await this.ask(run, "peek");
      if (this.run !== run || typeof body?.remaining !== "number") return;
      this.plot(run, body, "looked");
      if (body.remaining >= body.limit) return;
    }
  }

  plot(run, { remaining, limit }, kind) {
    this.chart.add((performance.now() - run.started) / 1000, remaining, limit, kind);
    this.find(".remaining").textContent = `${remaining} of ${limit} remain`;
    this.find("svg").setAttribute("aria-label", `Remaining over time: ${remaining} of ${limit} now.`);
  }

  showCounts({ yes, no }) {
    this.find(".allowed b").textContent = yes;
    this.find(".refused b").textContent = no;
  }

  showLast(run, answer) {
    this.find(".curl").textContent = curlOf(`${run.path}check`, run.headers, run.body);
    this.find(".headers").textContent = [`HTTP ${answer.status}`, ...answer.headers.map(([name, value]) => `${name}: ${value}`)].join("\n");
    this.find(".json").textContent = JSON.stringify(answer.body, null, 2);
  }
}
