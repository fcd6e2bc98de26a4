/** Makes the measurements reachable for the script that drives the browser. */

import { measureSignbit, timeSignbit } from "./signbit.js";
import { timeWllama } from "./wllama.js";

Object.assign(globalThis, { bench: { measureSignbit, timeSignbit, timeWllama } });
