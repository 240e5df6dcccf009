// Requests to the server that sent this page. An error has a sentence for the user as its message, and the refused files if there are several.

// `json` is sent as JSON, `form` as multipart form data: lists are repeated fields, null and undefined are left out.
export async function request(path, { method = null, json = null, form = null, signal = null } = {}) {
  const options = { method: method ?? (json || form ? "POST" : "GET"), signal, headers: {} };
  if (json) (options.body = JSON.stringify(json)), (options.headers["Content-Type"] = "application/json");
  if (form) options.body = toFormData(form);
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Check that “sightline serve” is still running.");
  }
  if (response.status === 204) return null;
  const answer = await response.json().catch(() => null);
  if (response.ok) return answer;
  throw Object.assign(new Error(answer?.error ?? `The server answered with status ${response.status}.`), { status: response.status, files: answer?.errors ?? null });
}

function toFormData(fields) {
  const data = new FormData();
  for (const [name, value] of Object.entries(fields)) {
    for (const item of Array.isArray(value) ? value : [value]) {
      if (item instanceof Blob) data.append(name, item, item.name ?? "image.png");
      else if (item !== null && item !== undefined) data.append(name, item);
    }
  }
  return data;
}

let models = null;
// The models that the server has, asked for once.
export const loadModels = () => (models ??= request("api/models").catch((error) => ((models = null), Promise.reject(error))));

// Requests of which only the newest counts: a new one cancels the one before, whose promise then resolves to null.
export function newestOnly() {
  let controller = null;
  return async (path, options) => {
    controller?.abort();
    const own = (controller = new AbortController());
    try {
      return await request(path, { ...options, signal: own.signal });
    } catch (error) {
      if (error.name === "AbortError") return null;
      throw error;
    }
  };
}
