/** Figures as people read them. */

/** A size: three digits and a unit. */
export function formatBytes(bytes: number): string {
  const units = ["bytes", "KB", "MB", "GB"];
  let value = bytes;
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ${units[unit] ?? ""}`;
}

/** A number, in words where it is large. */
export function formatCount(count: number): string {
  const units: readonly [number, string][] = [
    [1e9, "billion"],
    [1e6, "million"],
  ];
  for (const [size, name] of units) {
    if (count >= size) {
      return `${(count / size).toFixed(count >= 10 * size ? 0 : 1)} ${name}`;
    }
  }
  return count.toLocaleString("en");
}

const DAY_MS = 86_400_000;

/** The day of a moment in milliseconds since 1970, as seen from today. */
export function formatDay(moment: number, now = new Date()): string {
  const midnight = (date: Date): number => new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime();
  // Days on which clocks change have an hour more or less.
  const days = Math.round((midnight(now) - midnight(new Date(moment))) / DAY_MS);
  if (days <= 0) {
    return "today";
  }
  if (days === 1) {
    return "yesterday";
  }
  if (days < 30) {
    return `${days} days ago`;
  }
  return `on ${new Date(moment).toLocaleDateString("en", { day: "numeric", month: "long", year: "numeric" })}`;
}

/** A moment in milliseconds since 1970: the day, and of the last two days the time. */
export function formatMoment(moment: number, now = new Date()): string {
  const day = formatDay(moment, now);
  if (day !== "today" && day !== "yesterday") {
    return day;
  }
  const time = new Date(moment).toLocaleTimeString("en", { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  return `${day} at ${time}`;
}
