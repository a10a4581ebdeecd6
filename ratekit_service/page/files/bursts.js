// Two bursts side by side, sent with the same key, subject and pace.

import { send, sentence } from "./api.js";
import { Lane } from "./lane.js";

const form = document.querySelector("#burst-form");
const problem = document.querySelector("#burst-problem");
const lanes = [new Lane("Burst A", "GET:/orders", "fixed_window"), new Lane("Burst B", "GET:/search", "token_bucket")];
let isDemo = false;

export async function openBursts(settings) {
  isDemo = settings.demo;
  document.querySelector("#lanes").append(...lanes.map((lane) => lane.root));
  for (const lane of lanes) lane.find(".send").addEventListener("click", () => burst([lane]));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    burst(lanes);
  });
  form.elements.key.addEventListener("change", offerPlans);
  document.querySelector("#new-subject").addEventListener("click", newSubject);
  await useKey(settings.api_key);
}

export async function useKey(key) {
  form.elements.key.value = key;
  await offerPlans();
}

// Read the plans that the key can use. The key's own answer says what is wrong with it.
export async function offerPlans() {
  const key = form.elements.key.value;
  const answer = key ? await send("/v1/usage", { headers: { "x-api-key": key } }).catch(() => null) : null;
  problem.textContent = answer && !answer.ok ? sentence(answer) : "";
  for (const lane of lanes) lane.offer(isDemo, answer?.ok ? answer.body.plans : []);
}

function newSubject() {
  form.elements.subject.value = `user:${crypto.getRandomValues(new Uint32Array(1))[0]}`;
}

function burst(chosen) {
  const { key, subject, requests, gap, cost } = form.elements;
  if (![key, subject, requests, gap, cost].every((input) => input.reportValidity())) return;
  if (!chosen.every((lane) => lane.isValid())) return;
  problem.textContent = "";
  const settings = { key: key.value, subject: subject.value, requests: requests.valueAsNumber, gap: gap.valueAsNumber, cost: cost.valueAsNumber };
  for (const lane of chosen) lane.burst(settings);
}
