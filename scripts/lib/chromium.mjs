/** Real Chromium, driven from outside. */

import { chromiumPath } from "./setup.mjs";

/**
 * Starts Chromium with WebGPU, on the software adapter or on this machine's graphics device, and
 * opens a page whose messages appear here. With a folder as `profile` the browser is a visitor's, and keeps
 * what it stores there; without one it is a private window.
 */
export async function openPage(address, { hardware = false, flags = [], profile } = {}) {
  // Playwright is there only after the set-up.
  const { chromium } = await import("@playwright/test");
  const options = { executablePath: chromiumPath(), args: [...webgpuFlags(hardware), ...flags] };
  const browser = await (profile === undefined ? chromium.launch(options) : chromium.launchPersistentContext(profile, options));
  try {
    const page = await browser.newPage();
    page.on("console", (message) => console.log(message.text()));
    page.on("pageerror", (error) => console.error(error.message));
    page.setDefaultTimeout(0);
    await page.goto(address);
    await page.waitForLoadState("networkidle");
    return { browser, page };
  } catch (error) {
    await browser.close();
    throw error;
  }
}

function webgpuFlags(hardware) {
  const common = ["--no-sandbox", "--enable-unsafe-webgpu"];
  return hardware
    ? [...common, "--enable-features=Vulkan", "--ignore-gpu-blocklist"]
    : [...common, "--use-webgpu-adapter=swiftshader", "--enable-dawn-features=disable_workgroup_init"];
}
