// Requests to the service, and the curl command that sends the same.

export async function send(path, { method = "GET", headers = {}, body } = {}) {
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

// What an answer that is no success says.
export function sentence(answer) {
  return `${answer.status}: ${answer.body?.detail ?? "the service did not say why"}`;
}
