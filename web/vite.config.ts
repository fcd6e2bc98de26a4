import { defineConfig } from "vite";

export default defineConfig({
  root: import.meta.dirname,
  // The built page works under any path.
  base: "./",
  publicDir: false,
  // The worker package loads its script and its wasm file relative to itself.
  optimizeDeps: { exclude: ["signbit"] },
  worker: { format: "es" },
  build: {
    target: "es2023",
    // An inlined script or style would need a hole in the content security policy.
    modulePreload: false,
    assetsInlineLimit: 0,
    sourcemap: true,
  },
});
