// The classifier on the server: its state, and changes, which are sent one after another.
import { request } from "./api.js";
import { showError } from "./widgets.js";

const POLL_MILLISECONDS = 1500; // between questions whether a long fit is done
const LAST = "sightline-classifier"; // the id of the classifier that was open, in the browser's storage

export function createStore() {
  const [listeners, openListeners] = [[], []];
  let state = null; // null until the first change makes a classifier
  let queue = Promise.resolve();
  let pending = 0;
  let timer = null;

  const notify = () => listeners.forEach((listener) => listener(state));
  function set(next) {
    state = next;
    if (state) localStorage.setItem(LAST, state.id);
    else localStorage.removeItem(LAST);
    pollFit();
    notify();
  }
  // Whether there are images of two classes, but the fit takes longer than a request may.
  const isFitting = () => Boolean(state) && !state.fitted && state.classes.filter(({ examples }) => examples.length).length > 1;
  function pollFit() {
    clearTimeout(timer);
    if (isFitting()) timer = setTimeout(() => pending || reread(), POLL_MILLISECONDS);
  }
  const path = (rest = "") => `api/classifiers/${state.id}${rest}`;

  // Run one change after those before it. `send(path)` returns the answer, which is the new state.
  function change(send) {
    pending++;
    notify();
    const result = queue.then(async () => {
      try {
        if (!state) state = await request("api/classifiers", { json: {} });
        const answer = await send(path);
        pending--;
        set(answer);
        return answer;
      } catch (error) {
        pending--;
        notify();
        showError(error);
        if (state && error.status === 404) await reread();
        return null;
      }
    });
    queue = result;
    return result;
  }
  // Show what the server has: a fit that is done by now, or what another window changed.
  async function reread() {
    const { id } = state;
    try {
      const answer = await request(`api/classifiers/${id}`);
      if (!pending && state?.id === id && answer.version >= state.version) set(answer);
    } catch (error) {
      if (error.status === 404) open(null);
      else pollFit();
    }
  }
  const patch = (rest, json) => change((at) => request(at(rest), { method: "PATCH", json }));
  const remove = (rest) => change((at) => request(at(rest), { method: "DELETE" }));

  function open(next) {
    openListeners.forEach((listener) => listener());
    set(next);
  }
  return {
    subscribe: (listener) => listeners.push(listener),
    onOpen: (listener) => openListeners.push(listener), // before another classifier is shown
    state: () => state,
    isBusy: () => pending > 0 || isFitting(),
    path,
    open,
    openId: async (id) => open(await request(`api/classifiers/${id}`)),
    // Open the classifier of the last visit, if the server still has it.
    async restore() {
      const id = localStorage.getItem(LAST);
      if (id) await request(`api/classifiers/${id}`).then(open).catch((error) => (error.status === 404 ? localStorage.removeItem(LAST) : showError(error)));
    },
    addImages: (fields, images) => change(async (at) => {
      const answer = await request(at("/examples"), { form: { ...fields, image: images } });
      answer.errors?.forEach(({ name, error }) => showError(new Error(`${name}: ${error}`)));
      return answer;
    }),
    addClass: (name) => change((at) => request(at("/classes"), { json: { name } })),
    renameClass: (id, name) => patch(`/classes/${id}`, { name }),
    removeClass: (id) => remove(`/classes/${id}`),
    moveImage: (id, classId) => patch(`/examples/${id}`, { class_id: classId }),
    removeImage: (id) => remove(`/examples/${id}`),
    undo: () => change((at) => request(at("/undo"), { method: "POST" })),
    update: (json) => patch("", json),
  };
}
