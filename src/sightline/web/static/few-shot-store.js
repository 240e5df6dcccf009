// The classifier on the server: its state, and changes, which are sent one after another.
import { request } from "./api.js";
import { showError, toast } from "./widgets.js";

const POLL_MILLISECONDS = 1500; // between questions whether a long fit is done
const LAST = "sightline-classifier"; // the id of the classifier that was open, in the browser's storage

export function createStore() {
  const [listeners, openListeners] = [[], []];
  let state = null; // null until the first change makes a classifier
  let owner = { id: null }; // the classifier that is shown; a change keeps the one that it was made for
  let queue = Promise.resolve();
  let pending = 0;
  let timer = null;
  let offer = null; // the message that offers to undo the last change

  const notify = () => listeners.forEach((listener) => listener(state));
  function set(next) {
    state = next;
    if (state) localStorage.setItem(LAST, state.id);
    else localStorage.removeItem(LAST);
    pollFit();
    notify();
  }
  const isFitting = () => Boolean(state?.fitting); // the fit takes longer than a request may
  function pollFit() {
    clearTimeout(timer);
    if (isFitting()) timer = setTimeout(() => pending || reread(), POLL_MILLISECONDS);
  }
  const path = (rest = "", { id } = owner) => `api/classifiers/${id}${rest}`;

  // Run something after all changes that were made before.
  function after(run) {
    const result = queue.then(run);
    queue = result.catch(() => {});
    return result;
  }
  // Run one change after those before it. `send(path)` returns the answer, which is the new state of its classifier. It is
  // shown unless another one was opened meanwhile.
  function change(send, own = owner, refuse = showError) {
    pending++;
    offer?.remove();
    notify();
    return after(async () => {
      try {
        if (own.id === null) {
          const made = await request("api/classifiers", { json: {} });
          own.id = made.id;
          if (own === owner) state = made;
        }
        const answer = await send((rest) => path(rest, own));
        pending--;
        if (own === owner) set(answer);
        else notify();
        return answer;
      } catch (error) {
        pending--;
        notify();
        refuse(error);
        if (own === owner && state && error.status === 404) await reread();
        return null;
      }
    });
  }
  // Offer to undo the change with this answer, and no other one.
  function offerUndo(text, answer) {
    if (state !== answer || pending) return;
    offer?.remove();
    offer = toast(text, { action: "Undo", onAction: () => change((at) => request(at(`/undo?version=${answer.version}`), { method: "POST" })) });
  }
  // Show what the server has: a fit that is done by now, or what another window changed.
  async function reread() {
    const { id } = state;
    try {
      const answer = await request(`api/classifiers/${id}`);
      if (!pending && state?.id === id && answer.version >= state.version) set(answer);
    } catch (error) {
      if (error.status === 404) show(null);
      else pollFit();
    }
  }
  const patch = (rest, json) => change((at) => request(at(rest), { method: "PATCH", json }));
  const remove = (rest) => change((at) => request(at(rest), { method: "DELETE" }));

  function show(next) {
    offer?.remove();
    openListeners.forEach((listener) => listener());
    owner = { id: next?.id ?? null };
    set(next);
  }
  return {
    subscribe: (listener) => listeners.push(listener),
    onOpen: (listener) => openListeners.push(listener), // before another classifier is shown
    state: () => state,
    isBusy: () => pending > 0 || isFitting(),
    owner: () => owner,
    path,
    open: (next) => after(() => show(next)),
    openId: (id) => after(async () => show(await request(`api/classifiers/${id}`))),
    // Open the classifier of the last visit, if the server still has it and nothing was changed meanwhile.
    async restore() {
      const [id, own] = [localStorage.getItem(LAST), owner];
      if (!id) return;
      try {
        const answer = await request(`api/classifiers/${id}`);
        if (own === owner && own.id === null && !pending) show(answer);
      } catch (error) {
        if (error.status !== 404) showError(error);
        else if (!state) localStorage.removeItem(LAST);
      }
    },
    // `own` is the classifier that was shown when the images were given; `onRefused` gets the files that were refused.
    addImages: (fields, images, own, onRefused) => change(async (at) => {
      const answer = await request(at("/examples"), { form: { ...fields, image: images } });
      onRefused(answer.errors);
      return answer;
    }, own, (error) => (error.files ? onRefused(error.files) : showError(error))),
    addClass: (name) => change((at) => request(at("/classes"), { json: { name } })),
    renameClass: (id, name) => patch(`/classes/${id}`, { name }),
    removeClass: (id) => remove(`/classes/${id}`),
    moveImage: (id, classId) => patch(`/examples/${id}`, { class_id: classId }),
    removeImage: (id) => remove(`/examples/${id}`),
    offerUndo,
    undo: () => change((at) => request(at("/undo"), { method: "POST" })),
    update: (json) => patch("", json),
  };
}
