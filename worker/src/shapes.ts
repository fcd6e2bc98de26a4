/** What a value is that comes from a database, a file or another version of this package. */

export function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null;
}

export function isText(value: unknown): value is string {
  return typeof value === "string";
}

/** Whether `value` is a whole number from 0 that is exact. */
export function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

/** Whether `value` consists of so many hexadecimal digits. */
export function isHex(value: unknown, digits: number): value is string {
  return isText(value) && value.length === digits && /^[0-9a-f]*$/.test(value);
}
