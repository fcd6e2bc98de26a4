/** How long a model takes to come from a server, and from this machine the next time. */

import { createEngine, type CreateEngineOptions, type LoadTimes, type ModelInfo, type StorageTimes } from "../../worker/dist/client.js";
import type { RawRead } from "./raw-read-worker.js";

/** A load, from the call to the first token. */
export interface LoadReport {
  readonly ms: number;
  readonly first_token_ms: number;
  readonly engine: LoadTimes;
  readonly storage: StorageTimes;
}

export interface LoadBenchmark {
  readonly file_bytes: number;
  readonly store: string | null;
  /** From the server. */
  readonly cold: LoadReport;
  /** From the store, each by an engine of its own. */
  readonly warm: readonly LoadReport[];
  /** Reading every segment of the file once, and nothing else: before each warm load. */
  readonly raw: readonly RawRead[];
}

/** Downloads the model, then loads it `runs` times from where it is kept. */
export async function measureLoad(backend: "webgpu" | "cpu", url: string, runs: number): Promise<LoadBenchmark> {
  await deleteAll();
  const [cold, model] = await timeLoad({ backend }, url);
  const warm: LoadReport[] = [];
  const raw: RawRead[] = [];
  for (let run = 0; run < runs; run += 1) {
    raw.push(await readRaw());
    warm.push((await timeLoad({ backend }, url))[0]);
  }
  const [file] = model.files;
  return { file_bytes: file?.bytes ?? 0, store: file?.store ?? null, cold, warm, raw };
}

async function deleteAll(): Promise<void> {
  const engine = await createEngine({ backend: "cpu" });
  for (const { id } of await engine.models.list()) {
    await engine.models.delete(id);
  }
  engine.terminate();
}

async function timeLoad(options: CreateEngineOptions, url: string): Promise<[LoadReport, ModelInfo]> {
  const engine = await createEngine(options);
  const start = performance.now();
  const model = await engine.load(url, { context_length: 1024 });
  const ms = performance.now() - start;
  for await (const { ids } of engine.generate({ ids: [1], max_tokens: 1, temperature: 0, ignore_stop: true })) {
    if (ids.length > 0) {
      break;
    }
  }
  const first_token_ms = performance.now() - start;
  engine.terminate();
  return [{ ms, first_token_ms, engine: model.load, storage: model.storage }, model];
}

/** The rate of the store itself, in a worker, since only workers may read it synchronously. */
function readRaw(): Promise<RawRead> {
  const worker = new Worker(new URL("./raw-read-worker.js", import.meta.url), { type: "module" });
  return new Promise<RawRead>((resolve, reject) => {
    worker.onmessage = ({ data }: MessageEvent<RawRead>) => resolve(data);
    worker.onerror = ({ message }) => reject(new Error(message));
  }).finally(() => worker.terminate());
}
