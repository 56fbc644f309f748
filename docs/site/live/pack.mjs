/* Packs the Python of live pages: `node pack.mjs PYODIDE_FOLDER WHEELS_FOLDER LIBRARY_FOLDER TO`.

   Pyodide itself runs here, as it does in a browser, so that pack.py sees which modules the explorers need, and
   compiles them: Pyodide's own library comes as source, and compiling it would take most of a page's start. */
import { copyFileSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";

const [pyodide, wheels, library, to] = process.argv.slice(2).map((path) => resolve(path));
const here = import.meta.dirname;
const bytes = (folder, name) => new Uint8Array(readFileSync(join(folder, name)));
const { loadPyodide } = await import(join(pyodide, "pyodide.mjs"));
const python = await loadPyodide();
for (const name of readdirSync(wheels).filter((name) => name.endsWith(".whl"))) {
  python.unpackArchive(bytes(wheels, name), "zip", { extractDir: "/wheels" });
}
python.unpackArchive(bytes(pyodide, "python_stdlib.zip"), "zip", { extractDir: "/standard" });
for (const [name, folder] of [["/library", library], ["/site", join(here, "..")]]) {
  python.FS.mkdir(name);
  python.FS.mount(python.FS.filesystems.NODEFS, { root: folder }, name);
}
python.runPython(readFileSync(join(here, "pack.py"), "utf8"));

mkdirSync(to, { recursive: true });
writeFileSync(join(wheels, "drawn.json"), python.FS.readFile("/drawn.json"));
for (const name of ["standard.zip", "packages.gz"]) writeFileSync(join(to, name), python.FS.readFile(`/${name}`));
for (const name of ["pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm"]) copyFileSync(join(pyodide, name), join(to, name));
process.exit(0); // Pyodide would keep node running
