/** What a check compares and how it is written down. */

/** One figure against its threshold. */
export interface Check {
  /** Group, such as the fixture, and what was measured. */
  readonly name: string;
  readonly figure: number;
  /** The figure may be at most this. */
  readonly threshold: number;
  readonly ok: boolean;
  readonly detail: string;
}

/** A check that holds when the figure is at most the threshold; a figure that is no number fails. */
export function atMost(name: string, figure: number, threshold: number, detail = ""): Check {
  return { name, figure, threshold, ok: figure <= threshold, detail };
}

/** The worst of several figures and where it was. Nothing is worse than NaN. */
export class Worst {
  #figure = 0;
  #detail = "";

  get figure(): number {
    return this.#figure;
  }

  get detail(): string {
    return this.#detail;
  }

  note(figure: number, detail: string): void {
    if (!Number.isNaN(this.#figure) && !(figure <= this.#figure)) {
      this.#figure = figure;
      this.#detail = detail;
    }
  }
}

/** The largest absolute difference of two equally long rows; NaN anywhere gives NaN. */
export function maxDifference(left: Float32Array, right: Float32Array): number {
  if (left.length !== right.length) {
    return Number.NaN;
  }
  let largest = 0;
  for (const [index, value] of left.entries()) {
    const difference = Math.abs(value - (right[index] ?? Number.NaN));
    if (!(difference <= largest)) {
      largest = difference;
    }
    if (Number.isNaN(difference)) {
      return difference;
    }
  }
  return largest;
}

/** Index of the largest value, the first of equals. */
export function argmax(row: Float32Array): number {
  let best = 0;
  for (const [index, value] of row.entries()) {
    if (value > (row[best] ?? Number.NEGATIVE_INFINITY)) {
      best = index;
    }
  }
  return best;
}

/** Distance between the largest and the second largest value. */
export function topGap(row: Float32Array): number {
  let first = Number.NEGATIVE_INFINITY;
  let second = Number.NEGATIVE_INFINITY;
  for (const value of row) {
    if (value > first) {
      second = first;
      first = value;
    } else if (value > second) {
      second = value;
    }
  }
  return first - second;
}
