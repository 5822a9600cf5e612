// The page: choose a model, choose a picture, read the answer. Nothing leaves the browser.

import * as ort from "./ort/ort.wasm.min.mjs";
import { decode, prepare } from "./preprocess.mjs";

ort.env.wasm.wasmPaths = new URL("./ort/", import.meta.url).href;
// Threads need shared memory, which browsers give to isolated pages alone (COOP and COEP headers).
ort.env.wasm.numThreads = globalThis.crossOriginIsolated ? navigator.hardwareConcurrency : 1;

const opened = new Map();

async function get(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`${address}: ${answer.status} ${answer.statusText}`);
  return answer;
}

/** A model by the name of its file: its manifest and a session, opened once. */
async function open(file) {
  if (!opened.has(file)) {
    const manifest = await (await get(`models/${file}.manifest.json`)).json();
    const bytes = await (await get(`models/${file}`)).arrayBuffer();
    const session = await ort.InferenceSession.create(bytes, { executionProviders: ["wasm"] });
    opened.set(file, { manifest, session });
  }
  return opened.get(file);
}

/** Names of the models that were put beside the page. */
export async function models() {
  return (await get("models/index.json")).json();
}

/** All outputs for one picture, by name; `ms` is the time of the inference. */
export async function answer(file, blob) {
  const { manifest, session } = await open(file);
  const { shape, values } = prepare(await decode(blob), manifest);
  const feed = { [manifest.inputs[0].name]: new ort.Tensor("float32", values, shape) };
  const start = performance.now();
  const results = await session.run(feed);
  const ms = performance.now() - start;
  const outputs = Object.fromEntries(
    Object.entries(results).map(([name, tensor]) => [name, Array.from(tensor.data, Number)]),
  );
  return { outputs, labels: manifest.labels, ms };
}

/** The best classes with their share of the softmax. */
export function best(logits, labels, count = 5) {
  const largest = Math.max(...logits);
  const powers = logits.map((x) => Math.exp(x - largest));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers
    .map((p, index) => ({ label: labels[index] ?? `class ${index}`, share: p / sum }))
    .sort((a, b) => b.share - a.share)
    .slice(0, count);
}

function show(result) {
  const { outputs, labels, ms } = result;
  const [name, values] = Object.entries(outputs)[0];
  const rows =
    name === "logits"
      ? best(values, labels)
      : values.slice(0, 8).map((v, k) => ({ label: `${name}[${k}]`, share: v }));
  document.querySelector("#answer").replaceChildren(
    ...rows.map(({ label, share }) => {
      const row = document.createElement("li");
      row.append(label, " ", Object.assign(document.createElement("data"), {
        value: share,
        textContent: name === "logits" ? `${(100 * share).toFixed(1)} %` : share.toFixed(4),
      }));
      row.style.setProperty("--share", name === "logits" ? share : 0);
      return row;
    }),
  );
  document.querySelector("#status").textContent = `${ms.toFixed(1)} ms in this browser`;
}

async function start() {
  const status = document.querySelector("#status");
  const chooser = document.querySelector("#model");
  const picture = document.querySelector("#picture");
  const files = await models();
  chooser.replaceChildren(...files.map((file) => new Option(file, file)));
  status.textContent = "Choose a picture.";
  const run = async () => {
    const [blob] = picture.files;
    if (!blob) return;
    document.querySelector("#preview").src = URL.createObjectURL(blob);
    status.textContent = "Running…";
    try {
      show(await answer(chooser.value, blob));
    } catch (problem) {
      status.textContent = `Failed: ${problem.message}`;
    }
  };
  picture.addEventListener("change", run);
  chooser.addEventListener("change", run);
}

start().catch((problem) => {
  document.querySelector("#status").textContent = `Failed: ${problem.message}`;
});
