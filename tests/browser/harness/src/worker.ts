/**
 * The worker under test with one addition: GPU errors that nobody catches become console errors,
 * which fail the test. The real worker is the unchanged module that it imports.
 */

interface GpuDevice {
  addEventListener(type: "uncapturederror", listener: (event: { readonly error: Error }) => void): void;
}

interface GpuAdapterClass {
  readonly prototype: { requestDevice(descriptor?: unknown): Promise<GpuDevice> };
}

const adapterClass = (globalThis as { readonly GPUAdapter?: GpuAdapterClass }).GPUAdapter;
if (adapterClass !== undefined) {
  const { requestDevice } = adapterClass.prototype;
  adapterClass.prototype.requestDevice = async function (descriptor) {
    const device = await requestDevice.call(this, descriptor);
    device.addEventListener("uncapturederror", ({ error }) => console.error(`uncaptured GPU error: ${error.message}`));
    return device;
  };
}

await import("../../../../worker/dist/worker.js");

export {};
