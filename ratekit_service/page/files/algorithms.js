// The algorithms that a person can try, the numbers each has, and what to look out for.

const limit = { name: "limit", label: "Limit", value: 10, min: 1, max: 1000, step: 1 };
const windowSeconds = { name: "window_seconds", label: "Window in seconds", value: 5, min: 1, max: 300, step: 1 };

const inWindow = (plan) => `${plan.limit} in ${plan.window_seconds} s`;

// title: for people; numbers: its fields; shown: the numbers of a plan in words; hint: what to look out for.
export const algorithms = {
  fixed_window: {
    title: "fixed window",
    shown: inWindow,
    numbers: [limit, windowSeconds],
    hint: "All of the limit is back at once when the window ends: bursts meet at its edge.",
  },
  token_bucket: {
    title: "token bucket",
    shown: (plan) => `${plan.bucket_capacity} at once, ${plan.refill_rate_per_sec} more per second`,
    numbers: [
      { name: "bucket_capacity", label: "Capacity", value: 10, min: 1, max: 1000, step: 1 },
      { name: "refill_rate_per_sec", label: "Tokens per second", value: 2, min: 0.1, max: 1000, step: "any" },
    ],
    hint: "Tokens come back one by one: after the burst, requests pass at the refill rate.",
  },
  sliding_window: {
    title: "sliding window (log)",
    shown: inWindow,
    numbers: [limit, windowSeconds],
    hint: "Every request is remembered: never more than the limit within any window.",
  },
  sliding_window_counter: {
    title: "sliding window counter",
    shown: inWindow,
    numbers: [limit, windowSeconds],
    hint: "Two counters, the older one weighed by how much of it still counts.",
  },
  concurrency: {
    title: "concurrency",
    shown: (plan) => `${plan.limit} at the same time`,
    numbers: [
      { ...limit, label: "Slots", value: 3 },
      { name: "stale_after_seconds", label: "Stale after seconds", value: 2, min: 1, max: 300, step: 1 },
    ],
    hint: "A request holds a slot. Nobody releases these: they are free again when they are stale.",
  },
};
