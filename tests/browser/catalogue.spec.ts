/** The catalogue of official models, and which of them a device is offered. Needs no page. */

import { readFileSync } from "node:fs";
import { fits, memoryBudget, type CatalogueEntry } from "../../worker/dist/catalogue.js";
import { expect, test } from "./test.js";

const CATALOGUE = JSON.parse(readFileSync("worker/catalogue.json", "utf8")) as readonly CatalogueEntry[];

/** Elements of matrices and of vectors, and what the caches take. */
interface Geometry {
  readonly matrices: number;
  readonly vectors: number;
  readonly headerBytes: number;
  readonly attentionLayers: number;
  /** Key heads times their size. */
  readonly kvWidth: number;
  readonly recurrentBytes: number;
}

/** Published geometries of the sizes: the figures of the files' own metadata. */
const GEOMETRIES: Readonly<Record<string, Geometry>> = {
  "1.7B": dense({ layers: 28, hidden: 2048, inner: 6144, queryHeads: 16, isTied: true }),
  "4B": dense({ layers: 36, hidden: 2560, inner: 9728, queryHeads: 32, isTied: true }),
  "8B": dense({ layers: 36, hidden: 4096, inner: 12_288, queryHeads: 32, isTied: false }),
  "27B": hybrid(),
};
const BYTES_PER_WEIGHT: Readonly<Record<string, number>> = { Q1_0: 18 / 128, Q2_0: 18 / 64 };
/** Headers of one vocabulary differ by names and a few keys. */
const HEADER_TOLERANCE_BYTES = 10_000;
/** Tokens that the 4-bit cache keeps exactly: 8 at the beginning and the newest 128. */
const EXACT_TOKENS = 136;

function dense(of: { layers: number; hidden: number; inner: number; queryHeads: number; isTied: boolean }): Geometry {
  const [vocabulary, headDim, kvHeads] = [151_669, 128, 8];
  const { layers, hidden, inner } = of;
  const queries = of.queryHeads * headDim;
  const kvWidth = kvHeads * headDim;
  const perLayer = 2 * hidden * queries + 2 * hidden * kvWidth + 3 * hidden * inner;
  return {
    matrices: (of.isTied ? 1 : 2) * vocabulary * hidden + layers * perLayer,
    vectors: layers * (2 * hidden + 2 * headDim) + hidden,
    headerBytes: 5_950_000,
    attentionLayers: layers,
    kvWidth,
    recurrentBytes: 0,
  };
}

/** 48 layers with a recurrent state, 16 with attention whose queries come with gates. */
function hybrid(): Geometry {
  const [hidden, inner, vocabulary] = [5120, 17_408, 248_320];
  const [queries, kvWidth, headDim] = [24 * 256, 4 * 256, 256];
  const [keys, values, valueHeads, taps] = [16 * 128, 48 * 128, 48, 4];
  const channels = 2 * keys + values;
  const feedForward = 64 * 3 * hidden * inner;
  const attention = 16 * hidden * (2 * queries + 2 * kvWidth + queries);
  const recurrent = 48 * hidden * (channels + values + 2 * valueHeads + values);
  return {
    matrices: 2 * vocabulary * hidden + feedForward + attention + recurrent,
    vectors: hidden + 64 * 2 * hidden + 16 * 2 * headDim + 48 * (taps * channels + 2 * valueHeads + 128),
    headerBytes: 10_990_000,
    attentionLayers: 16,
    kvWidth,
    recurrentBytes: 48 * 4 * (valueHeads * 128 * 128 + (taps - 1) * channels),
  };
}

function names(device: Parameters<typeof fits>[1]): string[] {
  return CATALOGUE.filter((entry) => fits(entry, device).fits).map(({ name }) => name);
}

test("the catalogue lists eight models, each with what a load needs @page", () => {
  const sizes = Object.keys(GEOMETRIES);
  expect(CATALOGUE.map(({ name }) => name)).toEqual(["Bonsai", "Ternary Bonsai"].flatMap((family) => sizes.map((size) => `${family} ${size}`)));
  for (const entry of CATALOGUE) {
    expect(entry.id).toMatch(/^[a-z0-9._-]+$/);
    expect(entry.name.startsWith(`${entry.family} `)).toBe(true);
    expect(["qwen3", "qwen35"]).toContain(entry.architecture);
    expect(entry.licence).toBe("Apache-2.0");
    expect(entry.sha256).toMatch(/^[0-9a-f]{64}$/);
    // A branch could come to hold another file.
    expect(entry.url).toMatch(/^https:\/\/huggingface\.co\/prism-ml\/[\w.-]+\/resolve\/[0-9a-f]{7,40}\/[\w.-]+\.gguf$/);
    expect(entry.url.endsWith(`/${entry.file}`)).toBe(true);
  }
  for (const key of ["id", "name", "url", "file", "sha256", "bytes"] as const) {
    expect(new Set(CATALOGUE.map((entry) => entry[key])).size, key).toBe(CATALOGUE.length);
  }
});

test("sizes in the catalogue are those of the models' geometries @page", () => {
  for (const entry of CATALOGUE) {
    const geometry = GEOMETRIES[entry.name.split(" ").at(-1) ?? ""];
    if (geometry === undefined) {
      throw new Error(`${entry.name} has no geometry here`);
    }
    const { matrices, vectors, headerBytes, attentionLayers, kvWidth, recurrentBytes } = geometry;
    expect(entry.parameters).toBe(matrices + vectors);
    expect(entry.weight_bytes).toBe(matrices * (BYTES_PER_WEIGHT[entry.format] ?? NaN) + 4 * vectors);
    expect(Math.abs(entry.bytes - entry.weight_bytes - headerBytes), entry.name).toBeLessThan(HEADER_TOLERANCE_BYTES);
    // Keys and values: half a byte each, and 4 bytes of scale and offset for 32 of them.
    expect(entry.kv_bytes_per_token).toBe(attentionLayers * kvWidth * 2 * (1 / 2 + 4 / 32));
    expect(entry.state_bytes).toBe(attentionLayers * kvWidth * 2 * 4 * EXACT_TOKENS + recurrentBytes);
  }
});

test("a device is offered what its memory holds @page", () => {
  const all = CATALOGUE.map(({ name }) => name);
  const budget = (gib: number): { memory_budget_bytes: number } => ({ memory_budget_bytes: memoryBudget(gib) ?? NaN });
  const small = ["Bonsai 1.7B", "Bonsai 4B", "Ternary Bonsai 1.7B"];

  // A phone of 2 GiB, and a small computer of 4.
  expect(names({ limits: budget(2) })).toEqual(small);
  expect(names({ limits: budget(4) })).toEqual([...small.slice(0, 2), "Bonsai 8B", ...small.slice(2), "Ternary Bonsai 4B"]);
  // A laptop, and a browser that does not tell: whatever the graphics device takes.
  expect(memoryBudget(8)).toBeUndefined();
  expect(memoryBudget(undefined)).toBeUndefined();
  expect(names({ limits: {} })).toEqual(all);
  // The smallest buffers that a device may offer.
  expect(names({ limits: { max_buffer_bytes: 2 ** 27, max_binding_bytes: 2 ** 27 } })).toEqual(all);
  // The wasm module has less than 4 GiB, whatever the machine has, and its device says so.
  expect(names({ limits: { memory_budget_bytes: 3 * 2 ** 30 } })).toEqual(all.filter((name) => !name.includes("27B")));
  expect(names({ limits: budget(2) })).toEqual(small);
});

test("what does not fit says what it needs and what there is @page", () => {
  const entry = CATALOGUE.find(({ name }) => name === "Bonsai 27B");
  if (entry === undefined) {
    throw new Error("the catalogue lacks it");
  }
  // 3.79 GB of weights, 175 MB of states, 42 MB of cache and 67 MB for the rest.
  const onProcessor = fits(entry, { limits: { memory_budget_bytes: 3 * 2 ** 30 } });
  expect(onProcessor.needed_bytes).toBe(3_792_459_776 + 174_718_976 + 2048 * 20_480 + 67_108_864);
  expect(onProcessor.reason).toBe(
    "It needs 4.1 GB of memory, and may take 3.2 GB on this device.",
  );
  const onPhone = fits(entry, { limits: { memory_budget_bytes: 2 ** 30 } });
  expect(onPhone).toMatchObject({ fits: false, budget_bytes: 2 ** 30 });
  expect(onPhone.reason).toBe("It needs 4.1 GB of memory, and may take 1.1 GB on this device.");
  expect(fits(entry, { limits: {} })).toMatchObject({ fits: true, budget_bytes: null, reason: null });
});
