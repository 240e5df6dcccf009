// The classifier on the server: its state, and changes, which are sent one after another.
import { request } from "./api.js";
import { showError, toast } from "./widgets.js";

const POLL_MILLISECONDS = 1500; // between questions whether a long fit is done
const WATCH_MILLISECONDS = 5000; // between questions whether another window changed the classifier
const PROGRESS_MILLISECONDS = 1000; // between questions how far a fit is
const LAST = "sightline-classifier"; // the id of the classifier that was open, in the browser's storage

// `isShown()` says whether the page is in view; the server is not asked for changes while it is not.
export function createStore(isShown) {
  const [listeners, openListeners] = [[], []];
  let state = null; // null until the first change makes a classifier
  let owner = { id: null }; // the classifier that is shown; a change keeps the one that it was made for
  let opening = localStorage.getItem(LAST) ? { error: null } : null; // while the classifier of the last visit is not known
  let queue = Promise.resolve();
  let pending = 0;
  let timer = null;
  let watcher = null;
  let progress = null; // of a fit, { embedded, images }, if the server knows it; the images count once for each model
  let offer = null; // the message that offers to undo the last change

  const notify = () => listeners.forEach((listener) => listener(state));
  // Show a state of the server, which has `ownChanges` more than the one before, unless another window changed it, too.
  function set(next, { pollDelay = POLL_MILLISECONDS, ownChanges = 0 } = {}) {
    if (state && state.id === next?.id && next.version > state.version + ownChanges) toast("This classifier was changed in another window. It is shown as it is now.");
    state = next;
    progress = null;
    if (state) localStorage.setItem(LAST, state.id);
    else localStorage.removeItem(LAST);
    pollFit(pollDelay);
    scheduleWatch();
    notify();
  }
  const isFitting = () => Boolean(state?.fitting); // the fit takes longer than a request may, or was not waited for
  const isBusy = () => pending > 0 || isFitting();
  function pollFit(delay = POLL_MILLISECONDS) {
    clearTimeout(timer);
    if (isFitting()) timer = setTimeout(() => pending || reread(), delay);
  }
  // After a change of another classifier than the one shown, whose fit was not asked for meanwhile.
  function resume() {
    pollFit();
    notify();
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
    scheduleWatch();
    return after(async () => {
      try {
        if (own.id === null) {
          const made = await request("api/classifiers", { json: {} });
          own.id = made.id;
          if (own === owner) state = made;
        }
        const answer = await send((rest) => path(rest, own));
        pending--;
        if (own === owner) set(answer, { ownChanges: 1 });
        else resume();
        return answer;
      } catch (error) {
        pending--;
        if (own === owner && state) set(state); // also a classifier or a class that was made before the refusal
        else resume();
        refuse(error);
        if (own === owner && state && error.status === 404) await reread();
        return null;
      }
    });
  }
  // Offer to undo the change with this answer, and no other one. What `restored()` finds then has the focus.
  function offerUndo(text, answer, restored) {
    if (state !== answer || pending) return;
    offer?.remove();
    const undo = () => change((at) => request(at(`/undo?version=${answer.version}`), { method: "POST" }));
    offer = toast(text, { action: "Undo", onAction: () => undo().then((undone) => undone && restored()?.focus()) });
  }
  // Show what the server has: a fit that is done by now, or what another window changed.
  async function reread(read = readFitted) {
    const { id } = state;
    try {
      const answer = await read(id);
      if (!pending && state?.id === id && answer.version >= state.version) set(answer);
    } catch (error) {
      if (error.status !== 404) return pollFit();
      if (state?.id !== id) return;
      show(null);
      toast("This classifier was deleted in another window.");
    }
  }
  // Ask every few seconds how far a fit is, and whether another window changed or deleted the classifier, and show it.
  async function watch() {
    const [own, shown] = [owner, state];
    if (own.id !== null && isShown()) {
      const answer = await request(path("/status")).catch((error) => ({ version: error.status === 404 ? Infinity : 0 }));
      if (own === owner && isBusy()) (progress = answer?.progress), notify();
      else if (shown && state === shown && answer?.version > shown.version) await reread(readAtOnce);
    }
    scheduleWatch();
  }
  function scheduleWatch() {
    clearTimeout(watcher);
    watcher = setTimeout(watch, isBusy() ? PROGRESS_MILLISECONDS : WATCH_MILLISECONDS);
  }
  const patch = (rest, json) => change((at) => request(at(rest), { method: "PATCH", json }));
  // Add the class of a card, { id, bind }, to the server, which it is known by from then on.
  async function addClass(card, name, at, own) {
    const answer = await request(at("/classes"), { json: { name } });
    if (own === owner) state = answer;
    const made = answer.classes.find((item) => item.name === name.normalize("NFC")); // the last one may be of another window
    card.bind((made ?? answer.classes.at(-1)).id);
    return answer;
  }

  function show(next) {
    offer?.remove();
    openListeners.forEach((listener) => listener());
    owner = { id: next?.id ?? null };
    opening = null;
    set(next, { pollDelay: 0 });
  }
  const readFitted = (id) => request(`api/classifiers/${id}`);
  const readAtOnce = (id) => request(`api/classifiers/${id}?wait=false`); // the fit is read after it
  for (const [target, event] of [[document, "visibilitychange"], [window, "focus"]]) target.addEventListener(event, watch);
  watch();
  return {
    subscribe: (listener) => listeners.push(listener),
    onOpen: (listener) => openListeners.push(listener), // before another classifier is shown
    state: () => state,
    opening: () => opening,
    isBusy,
    // What is done meanwhile, in words; empty if nothing is.
    activity: () => (!isBusy() ? "" : progress ? `Learning… ${Math.floor((100 * progress.embedded) / progress.images)}%` : "Learning…"),
    owner: () => owner,
    path,
    open: (next) => after(() => show(next)),
    openId: (id) => after(async () => show(await readAtOnce(id))),
    // Open the classifier of the last visit, if the server still has it. Until it is known, nothing can be changed.
    restore: () => after(async () => {
      if (!opening) return;
      opening = { error: null };
      notify();
      try {
        show(await readAtOnce(localStorage.getItem(LAST)));
      } catch (error) {
        if (error.status === 404 || error.status === 422) return show(null);
        opening = { error };
        notify();
      }
    }),
    // `own` is the classifier that was shown when the images were given; `onRefused` gets the files that were refused.
    addImages: (card, images, own, onRefused) => change(async (at) => {
      if (card.id() === null) await addClass(card, card.name(), at, own); // a change of its own: undo of the images keeps it
      const answer = await request(at("/examples"), { form: { class_id: card.id(), image: images } });
      onRefused(answer.errors);
      return answer;
    }, own, (error) => (error.files ? onRefused(error.files) : showError(error))),
    // A class has its name on the server also while it has no images.
    nameClass: (card, name, own) => change((at) =>
      card.id() === null ? addClass(card, name, at, own) : request(at(`/classes/${card.id()}`), { method: "PATCH", json: { name } }), own),
    removeClass: (id, own) => change((at) => request(at(`/classes/${id}`), { method: "DELETE" }), own),
    moveImage: (id, classId) => patch(`/examples/${id}`, { class_id: classId }),
    removeImages: (ids) => change((at) => request(at("/examples/remove"), { json: { ids } })),
    offerUndo,
    undo: () => change((at) => request(at("/undo"), { method: "POST" })),
    update: (json) => patch("", json),
  };
}
