// Starts the GitHub emulator of the package that is named on the command line. The first line of the input says what is
// in it; the answer is a line with its address and the app's private key, which the emulator makes. It ends with the
// input, so it outlives no test.

import { createInterface } from "node:readline";

const { createEmulator } = await import(process.argv[2]);
const lines = createInterface({ input: process.stdin });
lines.once("line", async (line) => {
  const emulator = await createEmulator({ service: "github", port: 0, seed: JSON.parse(line) });
  const [key] = emulator.generatedSecrets.filter((secret) => secret.kind === "github.app_private_key");
  console.log(JSON.stringify({ url: emulator.url, key: key.value }));
});
lines.once("close", () => process.exit(0));
