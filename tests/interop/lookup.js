// Looks up embedding rows from Node, as a ranking service would. To start from it, copy this file and embershard.proto.
//
//   npm install @grpc/grpc-js @grpc/proto-loader
//   node lookup.js --target 127.0.0.1:50051 --ids user_id=1,2,3 --keys zip_code=90210
//   node lookup.js --ids genres=3,5,9 --lengths genres=2,1 --weights genres=1,0.5,1 --dtype float16
//   node lookup.js --target ranker.example:50051 --ca ca.pem --token-file read.token --ids user_id=7
//
// Flags and environment are those of `embershard lookup`. It prints one JSON document, a vector an id (an example where
// the table pools): {"version": "3", "features": {"user_id": [[0.1, …], …]}}.
"use strict";

const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const { parseArgs } = require("node:util");

const grpc = require("@grpc/grpc-js");
const protoLoader = require("@grpc/proto-loader");

const PROTO = path.join(__dirname, "../../proto/embershard/v1/embershard.proto");
const DTYPES = { float32: "D_TYPE_FLOAT32", float16: "D_TYPE_FLOAT16", int8: "D_TYPE_INT8" };

// The wire is little-endian, and typed arrays have the order of the machine: the same wherever Node is likely to run.
if (os.endianness() !== "LE") throw new Error("lookup.js needs a little-endian machine");

// ---- the connection ------------------------------------------------------------------------------------------------

// An EmbeddingService of one address. `security` has file names ca, cert and key, `tls` (the system's authorities), a
// `token`, and `serverName`, which the certificate is for if it isn't for the address.
function connect(target, security = {}) {
  const { tls, ca, cert, key, token, serverName } = security;
  const secure = Boolean(tls || ca || cert);
  if (token && !secure && !/^(localhost|127\.[\d.]+|\[::1\]):\d+$/.test(target)) {
    throw new Error(`a token isn't sent in plaintext to ${target}: give ca, or tls`);
  }
  const read = (file) => (file ? fs.readFileSync(file) : null);
  const { createInsecure, createSsl } = grpc.credentials;
  const credentials = secure ? createSsl(read(ca), read(key), read(cert)) : createInsecure();
  const definition = protoLoader.loadSync(PROTO, {
    keepCase: true, // names as the proto has them: min_version
    longs: String, // versions are uint64, and numbers of JavaScript end at 2^53
    enums: String,
    defaults: true, // what is empty is told, too: rows of an empty feature are 0
  });
  const { EmbeddingService } = grpc.loadPackageDefinition(definition).embershard.v1;
  const client = new EmbeddingService(target, credentials, {
    "grpc.max_receive_message_length": -1, // gRPC's own 4 MiB are 16,000 vectors of 64; the server has a bound
    ...(!secure && { "grpc.enable_http_proxy": 0 }), // a proxy on the way would read a token
    ...(serverName && { "grpc.ssl_target_name_override": serverName, "grpc.default_authority": serverName }),
  });
  const metadata = new grpc.Metadata();
  if (token) metadata.set("authorization", `Bearer ${token}`);
  return { client, metadata };
}

// Resolves to {version, features: {feature: {rows, dim, values, vectors}}}: values are the bytes that came, and vectors
// a Float32Array of rows × dim. Rejects with gRPC's error: RESOURCE_EXHAUSTED with `grpc-retry-pushback-ms` in its
// metadata means that the service has too much to do, and how long to hold back.
function lookup({ client, metadata }, features, { dtype = "float32", minVersion = "0", timeoutMs = 10_000 } = {}) {
  const request = { features, dtype: DTYPES[dtype], min_version: minVersion };
  return new Promise((resolve, reject) => {
    client.Lookup(request, metadata, { deadline: Date.now() + timeoutMs }, (error, response) => {
      if (error) return reject(error);
      const parts = response.features.map((part) => [part.feature, { ...part, vectors: floats(part, dtype) }]);
      return resolve({ version: response.version, features: Object.fromEntries(parts) });
    });
  });
}

// ---- ids go out ----------------------------------------------------------------------------------------------------

// A FeatureIds. `ids` are BigInts (an unsigned one by two's complement) or `keys` strings; `lengths` says how many of
// them each example has, and `weights` has a number for each, both of features that pool.
function featureIds(feature, { ids = [], keys = [], lengths = [], weights = [] }) {
  return {
    feature,
    ids: bytes(BigInt64Array.from(ids)),
    keys,
    lengths: bytes(Int32Array.from(lengths)),
    weights: bytes(Float32Array.from(weights)),
  };
}

function bytes(array) {
  return Buffer.from(array.buffer, array.byteOffset, array.byteLength);
}

// ---- vectors come in -----------------------------------------------------------------------------------------------

// The values of a feature as numbers. Those of float32 are a view of the bytes that came, where these lie well.
function floats({ rows, dim, values }, dtype) {
  if (dtype === "float16") return Float32Array.from(view(Uint16Array, values), fromHalf);
  if (dtype === "int8") return fromInt8(rows, dim, values);
  return view(Float32Array, values);
}

// A typed array may only begin at a multiple of its items' size; the service sees to that within a message, but where
// the message lies is up to the library that received it.
function view(Kind, values) {
  const aligned = values.byteOffset % Kind.BYTES_PER_ELEMENT ? Uint8Array.from(values) : values;
  return new Kind(aligned.buffer, aligned.byteOffset, aligned.byteLength / Kind.BYTES_PER_ELEMENT);
}

// A half is a sign, five bits of exponent and ten of fraction; newer versions of Node have a Float16Array for it.
function fromHalf(bits) {
  const [sign, exponent, fraction] = [bits & 0x8000 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

// A row is dim bytes, and what these are multiplied by, and what is added: each step in float32, as everybody does it.
function fromInt8(rows, dim, values) {
  const vectors = new Float32Array(rows * dim);
  const data = new DataView(values.buffer, values.byteOffset, values.byteLength);
  for (let row = 0; row < rows; row += 1) {
    const start = row * (dim + 8);
    const [scale, bias] = [data.getFloat32(start + dim, true), data.getFloat32(start + dim + 4, true)];
    for (let i = 0; i < dim; i += 1) vectors[row * dim + i] = Math.fround(values[start + i] * scale) + bias;
  }
  return vectors;
}

// ---- the command line ----------------------------------------------------------------------------------------------

const VALUES = ["target", "ca", "client-cert", "client-key", "token-file", "server-name", "dtype", "min-version"];
const LISTS = ["ids", "keys", "lengths", "weights"];

function options() {
  const flags = Object.fromEntries(VALUES.map((name) => [name, { type: "string" }]));
  for (const name of LISTS) flags[name] = { type: "string", multiple: true, default: [] };
  const given = parseArgs({ options: { ...flags, tls: { type: "boolean" } } }).values;
  const of = (flag, variable) => given[flag] ?? process.env[`EMBERSHARD_${variable}`];
  const file = of("token-file", "TOKEN_FILE");
  const security = {
    tls: given.tls || process.env.EMBERSHARD_TLS === "1",
    ca: of("ca", "CA"),
    cert: of("client-cert", "CLIENT_CERT"),
    key: of("client-key", "CLIENT_KEY"),
    token: file ? fs.readFileSync(file, "utf8").trim() : process.env.EMBERSHARD_TOKEN,
    serverName: of("server-name", "SERVER_NAME"),
  };
  return { given, target: given.target ?? "127.0.0.1:50051", security };
}

// {feature: {ids, lengths, …}} of flags such as --ids user_id=1,2 --lengths user_id=2.
function batches(given) {
  const read = { ids: BigInt, keys: String, lengths: Number, weights: Number };
  const found = {};
  for (const name of LISTS) {
    for (const text of given[name]) {
      const at = text.indexOf("=");
      const items = text.slice(at + 1).split(",").filter((item) => item || name === "keys");
      (found[text.slice(0, at)] ??= {})[name] = items.map(read[name]);
    }
  }
  return found;
}

async function main() {
  const { given, target, security } = options();
  const service = connect(target, security);
  const asked = Object.entries(batches(given)).map(([feature, batch]) => featureIds(feature, batch));
  const told = await lookup(service, asked, { dtype: given.dtype, minVersion: given["min-version"] });
  const rowsOf = ({ rows, dim, vectors }) =>
    Array.from({ length: rows }, (_, row) => Array.from(vectors.subarray(row * dim, (row + 1) * dim)));
  const features = Object.entries(told.features).map(([feature, part]) => [feature, rowsOf(part)]);
  console.log(JSON.stringify({ version: told.version, features: Object.fromEntries(features) }));
  service.client.close();
}

module.exports = { connect, featureIds, lookup };

if (require.main === module) {
  main().catch((error) => {
    console.error(`lookup.js: ${error.message}`);
    process.exitCode = 1;
  });
}
