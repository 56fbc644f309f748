/* Runs Python for live.js. All that it loads lies in the folder python/ beside it. */
import { loadPyodide } from "./python/pyodide.mjs";

const beside = (name) => new URL(`python/${name}`, import.meta.url).href;
const INFO = { abi_version: "2026_0", arch: "wasm32", platform: "emscripten_5_0_3", python: "3.14.0" };

/* The files of the archive that pack.py wrote: a line of names and sizes, and then all bytes. The browser unpacks it
   while it compiles the WebAssembly. */
async function packedFiles() {
  const response = await fetch(beside("packages.gz"));
  if (!response.ok) throw new Error("a part of Python is missing");
  const stream = response.body.pipeThrough(new DecompressionStream("gzip"));
  const all = new Uint8Array(await new Response(stream).arrayBuffer());
  let start = all.indexOf("\n".charCodeAt()) + 1;
  const index = JSON.parse(new TextDecoder().decode(all.subarray(0, start)));
  return index.map(([name, size]) => [name, all.subarray(start, start += size)]);
}

async function loaded() {
  const packing = packedFiles();
  const lockFileContents = JSON.stringify({ info: INFO, packages: {} });
  const [files, python] = await Promise.all([packing, loadPyodide({ stdLibURL: beside("standard.zip"), lockFileContents })]);
  for (const [name, bytes] of files) {
    const path = `/lib/python3.14/site-packages/${name}`;
    python.FS.mkdirTree(path.slice(0, path.lastIndexOf("/")));
    python.FS.writeFile(path, bytes);
  }
  return python.pyimport("pages.live").answer;
}

// Pyodide does not tell whoever called it that its WebAssembly could not be fetched.
addEventListener("unhandledrejection", ({ reason }) => postMessage({ problem: String(reason.message ?? reason) }));

const loading = loaded();
loading.catch(() => {}); // whoever asks is told
addEventListener("message", async ({ data: { number, question, given } }) => {
  try {
    postMessage({ number, text: (await loading)(question, given) });
  } catch (error) {
    postMessage({ number, problem: error.message });
  }
});
