/** A turn of the event loop, so that messages are heard between two pieces of work. */

const channel = new MessageChannel();
let resume: (() => void) | undefined;
channel.port1.onmessage = () => resume?.();

/** A timer would be clamped to milliseconds, or to seconds in a hidden tab. */
export function turn(): Promise<void> {
  return new Promise((resolve) => {
    resume = resolve;
    channel.port2.postMessage(null);
  });
}
