// Answers for tests/test_interop.py: requests come as JSON on standard input, [{target, security, features, dtype}, …],
// each is looked up by lookup.js, and the bytes go out in base64. A refusal goes out as {code, details}.
"use strict";

const { connect, featureIds, lookup } = require("./lookup.js");

const base64 = (array) => Buffer.from(array.buffer, array.byteOffset, array.byteLength).toString("base64");

async function answer({ target, security, features, dtype }) {
  const service = connect(target, security);
  const asked = features.map(([name, batch]) => featureIds(name, { ...batch, ids: batch.ids?.map(BigInt) }));
  try {
    const told = await lookup(service, asked, { dtype });
    const parts = Object.entries(told.features);
    return parts.map(([feature, { rows, dim, values, vectors }]) => ({
      feature,
      rows,
      dim,
      values: base64(values),
      vectors: base64(vectors),
    }));
  } catch ({ code, details }) {
    return { code, details };
  } finally {
    service.client.close();
  }
}

async function main() {
  const answers = [];
  for (const request of JSON.parse(require("node:fs").readFileSync(0, "utf8"))) answers.push(await answer(request));
  console.log(JSON.stringify(answers));
}

main();
