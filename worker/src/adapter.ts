/** The browser's adapter, of which the engine's graphics library does not tell and ask all. */

/** The part of a `GPUAdapter` that is used; TypeScript's types of the DOM do not have it yet. */
export interface Adapter {
  readonly info?: Readonly<Record<"vendor" | "architecture" | "device" | "description", string>>;
  readonly features: ReadonlySet<string>;
  requestDevice(descriptor?: { requiredFeatures?: Iterable<string> }): Promise<unknown>;
}

interface GpuNavigator {
  readonly gpu?: {
    requestAdapter(options: { powerPreference: "high-performance" }): Promise<Adapter | null>;
  };
}

/** An adapter like the one that the engine will get, or null. */
export async function findAdapter(): Promise<Adapter | null> {
  const { gpu } = navigator as GpuNavigator;
  try {
    return (await gpu?.requestAdapter({ powerPreference: "high-performance" })) ?? null;
  } catch {
    // The engine asks for itself and says what is wrong.
    return null;
  }
}

/** How the engine is to call the adapter: all that the browser tells, for two adapters must not share a name. */
export function adapterName(adapter: Adapter | null): { adapter_name?: string; adapter_vendor?: string } {
  const { description, device, architecture, vendor } = adapter?.info ?? {};
  const name = [description, device, architecture].filter((part) => part).join(" ");
  return { ...(name ? { adapter_name: name } : {}), ...(vendor ? { adapter_vendor: vendor } : {}) };
}

/**
 * Makes every device that this worker requests have subgroups, if the adapter does. The graphics
 * library has no way to ask for them in a browser.
 */
export function requestSubgroups(adapter: Adapter): boolean {
  if (!adapter.features.has("subgroups")) {
    return false;
  }
  const prototype = Object.getPrototypeOf(adapter) as Adapter;
  const { requestDevice } = prototype;
  prototype.requestDevice = function (descriptor = {}) {
    if (!this.features.has("subgroups")) {
      return requestDevice.call(this, descriptor);
    }
    const requiredFeatures = new Set([...(descriptor.requiredFeatures ?? []), "subgroups"]);
    return requestDevice.call(this, { ...descriptor, requiredFeatures });
  };
  return true;
}
