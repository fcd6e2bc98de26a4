/** The storage in a worker of its own, so that reading goes on while the engine packs what was read. */

import { serveStorage, type Endpoint } from "./storage-host.js";

serveStorage(globalThis as unknown as Endpoint);
