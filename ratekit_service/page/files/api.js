// Requests to the service, and the curl command that sends the same.

const PRINTABLE = /^[\x20-\x7e]*$/; // what a header can carry: fetch throws for anything else, as if nobody answered

export async function send(path, { method = "GET", headers = {}, body } = {}) {
  if (!Object.values(headers).every((value) => PRINTABLE.test(value))) return { status: 401, ok: false, headers: [], body: { detail: "keys and tokens have letters, digits and signs of ASCII alone" } };
  const given = body === undefined ? headers : { ...headers, "content-type": "application/json" };
  const text = body === undefined ? undefined : JSON.stringify(body);
  const answer = await fetch(path, { method, headers: given, body: text, cache: "no-store", credentials: "omit" });
  const received = await answer.text();
  return { status: answer.status, ok: answer.ok, headers: [...answer.headers], body: parsed(received) };
}

function parsed(text) {
  try {
    return text ? JSON.parse(text) : null;
  } catch {
    return { detail: text };
  }
}

export function curlOf(path, headers, body) {
  const lines = Object.entries({ ...headers, "content-type": "application/json" }).map(([name, value]) => `-H ${quoted(`${name}: ${value}`)}`);
  return [`curl -i ${quoted(location.origin + path)}`, ...lines, `-d ${quoted(JSON.stringify(body))}`].join(" \\\n  ");
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

// What an answer that is no success says. A status of 0 is no answer at all.
export function sentence(answer) {
  const detail = answer.body?.detail ?? "the service did not say why";
  return answer.status ? `${answer.status}: ${detail}` : detail;
}
