/**
 * The worker under test with three additions: GPU errors that nobody catches become console errors, which
 * fail the test; a worker whose name is a number loses its GPU when it has given so many tokens; and all lose theirs
 * at a word on the channel `lose-gpu`.
 * The real worker is the unchanged module that it imports.
 */

interface GpuDevice {
  destroy(): void;
  addEventListener(type: "uncapturederror", listener: (event: { readonly error: Error }) => void): void;
}

interface GpuAdapterClass {
  readonly prototype: { requestDevice(descriptor?: unknown): Promise<GpuDevice> };
}

interface WorkerScope {
  readonly name: string;
  postMessage(message: { readonly step?: { readonly ids: readonly number[] } }, transfer?: Transferable[]): void;
}

const devices: GpuDevice[] = [];
const adapterClass = (globalThis as { readonly GPUAdapter?: GpuAdapterClass }).GPUAdapter;
if (adapterClass !== undefined) {
  const { requestDevice } = adapterClass.prototype;
  adapterClass.prototype.requestDevice = async function (descriptor) {
    const device = await requestDevice.call(this, descriptor);
    device.addEventListener("uncapturederror", ({ error }) => console.error(`uncaptured GPU error: ${error.message}`));
    devices.push(device);
    return device;
  };
}

function lose(): void {
  for (const device of devices.splice(0)) {
    device.destroy();
  }
}

new BroadcastChannel("lose-gpu").onmessage = lose;

const scope = globalThis as unknown as WorkerScope;
if (scope.name !== "") {
  const { postMessage } = scope;
  let tokensLeft = Number(scope.name);
  scope.postMessage = (message, transfer) => {
    postMessage.call(scope, message, transfer);
    tokensLeft -= message.step?.ids.length ?? 0;
    if (tokensLeft <= 0) {
      lose();
    }
  };
}

await import("../../../../worker/dist/worker.js");

export {};
