/** Makes the measurements reachable for the script that drives the browser. */

import { measureLoad } from "./load.js";
import { measureSignbit, timeSignbit } from "./signbit.js";
import { timeWllama } from "./wllama.js";

Object.assign(globalThis, { bench: { measureLoad, measureSignbit, timeSignbit, timeWllama } });
