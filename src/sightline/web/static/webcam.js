// The webcam: a square preview, and pictures from it.
import { element } from "../view/elements.js";
import { canvasFile } from "./images.js";

const SIDE = 320;
const REASONS = {
  NotAllowedError: "The browser does not allow the webcam. Allow it beside the address of this page.",
  NotFoundError: "No webcam was found.",
  NotReadableError: "Another program uses the webcam.",
};

export function createWebcam() {
  const video = element("video", { className: "webcam", muted: true, playsInline: true, ariaLabel: "Webcam" });
  const canvas = element("canvas", { width: SIDE, height: SIDE });
  let stream = null;
  let turn = 0; // counts starts and stops

  // True if the webcam is on; false if it was stopped, or started again, before the browser allowed it.
  async function start() {
    if (stream) return true;
    if (!navigator.mediaDevices) throw new Error("Browsers allow the webcam only on this machine (localhost) or over HTTPS.");
    const own = ++turn;
    let opened;
    try {
      opened = await navigator.mediaDevices.getUserMedia({ video: { width: { ideal: 640 }, height: { ideal: 480 }, facingMode: { ideal: "environment" } } });
    } catch (error) {
      if (own !== turn) return false;
      throw new Error(REASONS[error.name] ?? `The webcam cannot be used: ${error.message}`);
    }
    if (own !== turn) return release(opened), false;
    video.srcObject = stream = opened;
    video.classList.toggle("mirrored", stream.getVideoTracks()[0].getSettings().facingMode !== "environment");
    await video.play().catch(() => {}); // interrupted if it is stopped meanwhile
    return own === turn;
  }
  const release = (old) => old.getTracks().forEach((track) => track.stop());
  function stop() {
    turn++;
    if (stream) release(stream);
    stream = video.srcObject = null;
  }
  // The middle square of the current picture, as a file; null before the first picture.
  async function grab() {
    const { videoWidth: width, videoHeight: height } = video;
    if (!stream || !width) return null;
    const side = Math.min(width, height);
    canvas.getContext("2d").drawImage(video, (width - side) / 2, (height - side) / 2, side, side, 0, 0, SIDE, SIDE);
    return canvasFile(canvas, "webcam.jpg", "image/jpeg");
  }
  return { node: video, start, stop, grab };
}
